"""dithc trains Diffusion Transformers on CPU clusters, from satellite scenes to FID scores."""

from pathlib import Path
from typing import TYPE_CHECKING

from dithc import openmp as _openmp  # noqa: F401  before any library loads an OpenMP runtime

if TYPE_CHECKING:
    from xarray import DataArray

__all__ = ["open"]


def open(manifest: Path | str, *, image: int | None = None) -> "DataArray":
    """Opens what a stage made (scenes, tiles, latents, samples or features) as an xarray.DataArray.

    Pixels are in the units of the data set and read from disk when they are asked for; bands have their names, images their
    labels, scenes and tiles their places, and attributes say units, scale and where it is all from (`dithc.products.read`).

        samples = dithc.open("results/demo/samples/sentinel2-after/manifest.json")
        red, infrared = (samples.sel(band=band) for band in ("B04", "B08"))
        ndvi = (infrared - red) / (infrared + red)                   # (image, y, x)
        scene = dithc.open("results/demo/scenes/sentinel2/manifest.json", image=0)  # (band, y, x), with coordinates in metres

    Args:
        manifest: of the stage.
        image: number of one image alone, as (band, y, x).

    Raises:
        UserError: there is no such manifest or image, a file is damaged, or the stage has no arrays.
    """
    from dithc.products import read  # xarray takes its time

    return read(manifest, image=image)
