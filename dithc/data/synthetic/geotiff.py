"""Writes invented rasters of six bands, reflectance as Landsat's Collection 2 stores it: for readers of a described sensor."""

from pathlib import Path

import numpy as np

from dithc.data.grids import north_up
from dithc.data.raster import write_geotiff
from dithc.data.synthetic.gaofen2 import GaofenScene
from dithc.data.synthetic.landscape import grow
from dithc.data.synthetic.noise import Grid, generator
from dithc.data.synthetic.spectra import reflectance
from dithc.data.synthetic.themes import COUNTRYSIDE

BANDS = ("blue", "green", "red", "nir", "swir1", "swir2")
SENTINEL2_BANDS = (
    "B02",
    "B03",
    "B04",
    "B08",
    "B11",
    "B12",
)  # in which the landscape's spectra are tabulated: the nearest
SCALE, OFFSET, NODATA = 2.75e-5, -0.2, 0


def write_scene(folder: Path, scene: GaofenScene, *, seed: int) -> None:
    """Writes one scene, `scene-00000_<date>.tif`; the corner of every second one is no data."""
    grid = Grid(scene.size, scene.size, scene.gsd)
    land = grow(generator(seed, 5, scene.index, 0), grid, COUNTRYSIDE)
    image = reflectance(land, generator(seed, 5, scene.index, 1), bands=SENTINEL2_BANDS)  # (6, H, W)
    numbers = np.clip(np.rint((image - OFFSET) / SCALE), 1, 65_535).astype(np.uint16)
    if scene.index % 2 == 0:
        x, y = grid.coordinates()
        numbers[:, x + y < 0.3 * grid.extent_m] = NODATA
    left, top = scene.left_top()
    path = folder / f"scene-{scene.index:05d}_{scene.time:%Y%m%d}.tif"
    transform = north_up(left=left, top=top, gsd=scene.gsd)
    write_geotiff(path, numbers, transform=transform, epsg=scene.epsg, nodata=NODATA, verify=True)
