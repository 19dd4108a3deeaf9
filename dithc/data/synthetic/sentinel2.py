"""Synthetic Sentinel-2 products: folders, JPEG 2000 bands on three grids, scene classes, masks, XML, manifest."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.data.grids import north_up
from dithc.data.raster import write_geotiff
from dithc.data.synthetic.cover import COUNTRYSIDE, VEGETATION, Cover, Landscape
from dithc.data.synthetic.landscape import SUN_AZIMUTH_DEGREES, SUN_ZENITH_DEGREES, grow
from dithc.data.synthetic.noise import F32, Mask, PixelGrid, fractal, generator, shifted
from dithc.data.synthetic.safe import (
    BANDS_BY_RESOLUTION,
    OFFSET,
    QUANTIFICATION,
    SATURATED,
    SCL,
    SafeProduct,
    write_manifest,
    write_metadata,
)
from dithc.data.synthetic.spectra import BANDS, reflectance

LEVEL2A_BANDS = tuple(band for band in BANDS if band != "B10")
MAX_GROWN_SIDE = 2196
"""Largest side of a landscape in pixels, a fifth of the side of a complete product."""
NATIVE_60M = ("B01", "B09")


def write_product(folder: Path, product: SafeProduct, *, seed: int) -> None:
    """Write one product into `folder`.

    Scenes 0, 2, 4, ... have a corner without data (DN 0), as at the edge of an orbit. The second of every three scenes
    has no cloud. Checksums are SHA3-256, or MD5 in every second product. A product of more than `MAX_GROWN_SIDE` pixels
    repeats a smaller part, which bounds the memory of a complete tile (10,980 pixels).
    """
    root = folder / product.name
    side = repeated_side(product.size)
    grid = PixelGrid(side, side, 10.0)
    land = grow(generator(seed, 0, product.index, 0), grid, COUNTRYSIDE)
    image = reflectance(land, generator(seed, 0, product.index, 1), bands=LEVEL2A_BANDS)  # (12, H, W)
    weather = generator(seed, 0, product.index, 2)
    image = image - _overcorrection(weather, grid)
    opacity, bright, shadow = _cloud(weather, grid, present=product.index % 3 != 1)
    image *= 1 - np.float32(0.55) * shadow
    image += opacity * (bright - image)
    nodata = _nodata_corner(weather, grid, present=product.index % 2 == 0)
    scene_classes = _scene_classes(land, opacity, shadow, nodata)
    writer = _LayerWriter(root, product, nodata)
    writer.bands(image)
    writer.classes(scene_classes)
    writer.cloud_probability(opacity)
    write_metadata(root, product, sun=(SUN_ZENITH_DEGREES, SUN_AZIMUTH_DEGREES))
    write_manifest(root, checksum="MD5" if product.index % 2 else "SHA3-256")


class _LayerWriter:
    """Writer of the layers of a product. Pixels in `nodata` (H, W) are 0 in each."""

    def __init__(self, root: Path, product: SafeProduct, nodata: Mask) -> None:
        self.root, self.product = root, product
        self.nodata = {r: _mean(nodata.astype(np.float32), r // 10) > 0.5 for r in BANDS_BY_RESOLUTION}

    def bands(self, image: F32) -> None:
        """Write reflectance (12, H, W). The 20 m copy of B01 (60 m) repeats pixels."""
        for resolution, bands in BANDS_BY_RESOLUTION.items():
            for band in bands:
                measured = image[LEVEL2A_BANDS.index(band)]
                native = max(resolution, 60 if band in NATIVE_60M else 10)
                coarse = _mean(measured, native // 10).repeat(native // resolution, 0).repeat(native // resolution, 1)
                numbers = np.clip(np.rint(coarse * QUANTIFICATION - OFFSET), 1, SATURATED - 1).astype(np.uint16)
                self._write(self.product.image(band, resolution), resolution, numbers[None])

    def classes(self, scene_classes: npt.NDArray[np.uint8]) -> None:
        """Write the most frequent class of each pixel: also 0 where bands have values, as at the edge of real products."""
        for resolution in (20, 60):
            factor = resolution // 10
            shares = np.stack([_mean((scene_classes == c).astype(np.float32), factor) for c in range(len(SCL))])
            self._write(self.product.image("SCL", resolution), resolution, shares.argmax(0).astype(np.uint8)[None])

    def cloud_probability(self, opacity: F32) -> None:
        for resolution in (20, 60):
            percent = np.rint(_mean(opacity, resolution // 10) * 100).astype(np.uint8)
            self._write(self.product.quality(f"MSK_CLDPRB_{resolution}m"), resolution, percent[None])

    def _write(self, href: str, resolution: int, array: npt.NDArray[Any]) -> None:
        path = self.root / f"{href}.jp2"
        path.parent.mkdir(parents=True, exist_ok=True)
        left, top = self.product.left_top
        pixels = np.where(self.nodata[resolution], 0, array).astype(array.dtype)
        times = self.product.size // (pixels.shape[-1] * resolution // 10)
        pixels = np.tile(pixels, (1, times, times))
        transform = north_up(left=left, top=top, gsd=float(resolution))
        write_geotiff(path, pixels, transform=transform, epsg=self.product.epsg, driver="JP2OpenJPEG")


def repeated_side(size: int) -> int:
    """Return the side of the repeated part, at most `MAX_GROWN_SIDE`."""
    counts = range(-(-size // MAX_GROWN_SIDE), 4 * size // MAX_GROWN_SIDE + 1)
    return size // next((count for count in counts if size % (6 * count) == 0), 1)


def _mean(layer: F32, factor: int) -> F32:
    height, width = layer.shape
    blocks = layer.reshape(height // factor, factor, width // factor, factor)
    return np.asarray(blocks.mean(axis=(1, 3), dtype=np.float32))


def _overcorrection(rng: np.random.Generator, grid: PixelGrid) -> F32:
    """Return the reflectance (H, W) to subtract, so that dark water becomes negative."""
    haze = fractal(rng, grid, largest_m=grid.extent_m, slope=2.5)
    return np.asarray(np.float32(0.006) * np.clip(1 + np.float32(0.5) * haze, 0, 2), dtype=np.float32)


def _cloud(rng: np.random.Generator, grid: PixelGrid, *, present: bool) -> tuple[F32, F32, F32]:
    """Return opacity (0 to 1) and reflectance of a cloud, and its shadow, each (H, W)."""
    x, y = grid.coordinates()
    middle = rng.uniform(0.25, 0.75, size=2) * grid.extent_m
    radius = float(rng.uniform(0.09, 0.13)) * grid.extent_m
    puffs = fractal(rng, grid, largest_m=1.2 * radius, slope=1.9)
    body = np.float32(1.15) - np.hypot(x - middle[0], y - middle[1]) / np.float32(radius) + np.float32(0.3) * puffs
    opacity = np.clip(body * np.float32(1.3), 0, 1).astype(np.float32) * np.float32(present)
    bright = np.float32(0.42) + np.float32(0.16) * np.clip(body, 0, 2) + np.float32(0.03) * puffs
    step = round(0.9 * radius / grid.gsd)
    thick = shifted(opacity > 0.4, down=-step, right=-round(step * 0.6))
    return opacity, bright.astype(np.float32), (thick & (opacity < 0.4)).astype(np.float32)


def _nodata_corner(rng: np.random.Generator, grid: PixelGrid, *, present: bool) -> Mask:
    x, y = grid.coordinates()
    wide, high = rng.uniform(0.16, 0.24) * grid.extent_m, rng.uniform(0.3, 0.45) * grid.extent_m
    return np.asarray(((grid.extent_m - x) / wide + y / high < 1) & present)


def _scene_classes(land: Landscape, opacity: F32, shadow: F32, nodata: Mask) -> npt.NDArray[np.uint8]:
    classes = np.where(np.isin(land.cover, VEGETATION), SCL["VEGETATION"], SCL["NOT_VEGETATED"]).astype(np.uint8)
    classes[land.cover == Cover.WATER] = SCL["WATER"]
    classes[land.shade < 0.35] = SCL["DARK_FEATURE_SHADOW"]
    classes[shadow > 0] = SCL["CLOUD_SHADOW"]
    classes[opacity > 0.05] = SCL["THIN_CIRRUS"]
    classes[opacity > 0.25] = SCL["CLOUD_MEDIUM_PROBA"]
    classes[opacity > 0.6] = SCL["CLOUD_HIGH_PROBA"]
    classes[nodata] = SCL["NODATA"]
    return classes
