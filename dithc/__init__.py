"""dithc trains Diffusion Transformers on CPU clusters, from satellite scenes to FID scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.core import openmp as _openmp  # noqa: F401  before any library loads an OpenMP runtime

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

__all__ = ["open"]


def open(manifest: Path | str, *, image: int | None = None) -> "DataArray | Dataset":
    """Open scenes, tiles, latents, samples or features of a stage as an xarray.DataArray, a restoration as an xarray.Dataset.

    Pixels are in the units of the dataset and read from disk on access. Bands have names, images labels, scenes and tiles
    coordinates; attributes contain units, scale and origin (`dithc.data.export.open_stage`).

        samples = dithc.open("results/demo/samples/sentinel2-after/manifest.json")
        red, infrared = (samples.sel(band=band) for band in ("B04", "B08"))
        ndvi = (infrared - red) / (infrared + red)  # (image, y, x)

    Args:
        manifest: Manifest of the stage, or its folder.
        image: Number of a single image, as (band, y, x).

    Raises:
        UserError: The manifest or image does not exist, a file is damaged, or the stage has no arrays.
    """
    from dithc.data.export.open_stage import open_stage  # imports xarray

    return open_stage(manifest, image=image, latents=_open_latents)


def _open_latents(*arguments: Any) -> Any:
    from dithc.latents.as_xarray import open_latents  # torch takes its time

    return open_latents(*arguments)
