"""Rasters of six bands with scale and offset, as Landsat's Collection 2 stores reflectance; one corner is no data."""

from pathlib import Path

import numpy as np

from dithc.data.raster import write_geotiff

BANDS = ("blue", "green", "red", "nir", "swir1", "swir2")
SCALE, OFFSET = 2.75e-5, -0.2
REFLECTANCE = np.array([0.04, 0.07, 0.05, 0.32, 0.2, 0.12])


def write_raster(folder: Path, *, size: int, seed: int, number: int = 0) -> None:
    """Write `scene-NUMBER.tif` of `size` x `size` pixels of 30 m."""
    folder.mkdir(exist_ok=True)
    spread = np.random.default_rng([seed, number]).uniform(0.6, 1.4, (6, size, size))
    numbers = np.rint((REFLECTANCE[:, None, None] * spread - OFFSET) / SCALE).astype(np.uint16)
    rows, columns = np.mgrid[:size, :size]
    numbers[:, rows + columns < 0.3 * size] = 0
    transform = (30.0, 0.0, 442_000.0 + 34_000.0 * number, 0.0, -30.0, 4_429_000.0)
    write_geotiff(folder / f"scene-{number:05d}.tif", numbers, transform=transform, epsg=32650, nodata=0)
