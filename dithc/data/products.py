"""Export of images: bands with units, stored number types, and GeoTIFF files.

Legend: N images, C bands, H, W image.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dithc.data.geometry import GeoTransform
from dithc.data.npy_writer import open_npy
from dithc.data.scene import Array, Mask
from dithc.data.scenes import Scenes

if TYPE_CHECKING:
    from dithc.data.raster import BandLabel

__all__ = ["Bands", "Image", "Mask", "Scenes", "marked", "open_npy", "read_window", "write_geotiff"]

Color = Literal["red", "green", "blue"]
COLORS: tuple[Color, ...] = get_args(Color)
NODATA = {"int16": -32768, "uint16": 65535, "float32": float("nan")}
"""Stored number for missing data, outside the range that sensors deliver. uint8 has no spare number."""
# Band centers in nm. Sentinel-2A: MTD_MSIL2A.xml (Spectral_Information); B and C differ by less than 17 nm. Gaofen-2:
# centers of the published ranges 450-520, 520-590, 630-690 and 770-890 nm.
SENTINEL2_NM = {
    "B01": 442.7,
    "B02": 492.7,
    "B03": 559.8,
    "B04": 664.6,
    "B05": 704.1,
    "B06": 740.5,
    "B07": 782.8,
    "B08": 832.8,
    "B8A": 864.7,
    "B09": 945.1,
    "B10": 1373.5,
    "B11": 1613.7,
    "B12": 2202.4,
}
WAVELENGTHS_NM: dict[str, dict[str, float]] = {
    "sentinel2": SENTINEL2_NM,
    "sentinel2-stac": SENTINEL2_NM,
    "sentinel2-array": SENTINEL2_NM,
    "gaofen2": {"B": 485.0, "G": 555.0, "R": 660.0, "NIR": 830.0},
}


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Bands (C) of a set of images and the storage of their values: physical = stored * scale + offset."""

    names: tuple[str, ...]
    units: str  # of physical values, such as `reflectance`, or one for each band separated by ", "
    dtype: str  # of stored numbers: int16, uint16 or uint8; float32 for restored values
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    wavelengths_nm: tuple[float | None, ...]  # of the band centers, None if unknown
    shown: tuple[int, ...]  # indices of the bands displayed as red, green and blue

    @classmethod
    def of(cls, info: dict[str, Any], *, displayed: bool = False) -> "Bands":
        """Return the bands of a dataset as stored, from its dataset.json or the index of its scenes.

        `displayed` returns the display bands as bytes, scaled by the display stretch, for codecs of RGB images.
        """
        wavelengths, display = WAVELENGTHS_NM.get(info.get("kind", ""), {}), info.get("display", {})
        names = tuple(display["bands"] if displayed else info["bands"])
        units = info.get("units", "")
        if displayed:
            if ", " in units:
                units = ", ".join(units.split(", ")[info["bands"].index(name)] for name in names)
            offset, high = (np.broadcast_to(np.asarray(display[end], float), 3) for end in ("low", "high"))
            scale = (high - offset) / 255
        else:
            scale, offset = (np.broadcast_to(np.asarray(info[name], float), len(names)) for name in ("scale", "offset"))
        return cls(
            names=names,
            units=units,
            dtype="uint8" if displayed else info["dtype"],
            scale=tuple(scale.tolist()),
            offset=tuple(offset.tolist()),
            wavelengths_nm=tuple(wavelengths.get(name) for name in names),
            shown=tuple(names.index(name) for name in display.get("bands", ())),
        )

    @property
    def nodata(self) -> float | None:
        """Stored number for missing data, None if the type has no spare number."""
        return NODATA.get(self.dtype)

    def physical(self, stored: Array) -> npt.NDArray[np.float32]:
        """Convert stored numbers (..., C, H, W) to float32 in `units`."""
        scale, offset = (np.array(values, np.float32)[:, None, None] for values in (self.scale, self.offset))
        return np.asarray(stored.astype(np.float32) * scale + offset)

    def stored(self, physical: Array) -> tuple[Array, npt.NDArray[np.int64]]:
        """Round values (N, C, H, W) in `units` to stored numbers; also return the count of clipped values per band (C)."""
        scale, offset = (np.array(values, np.float64)[:, None, None] for values in (self.scale, self.offset))
        return self.kept(np.rint((physical.astype(np.float64) - offset) / scale))

    def kept(self, numbers: Array) -> tuple[Array, npt.NDArray[np.int64]]:
        """Cast integers (N, C, H, W) to the stored type; also return the count of clipped values per band (C)."""
        limits = np.iinfo(np.dtype(self.dtype))
        low = limits.min + (self.nodata == limits.min)
        high = limits.max - (self.nodata == limits.max)
        clipped = ((numbers < low) | (numbers > high)).sum(axis=(0, 2, 3), dtype=np.int64)  # (C,)
        return np.clip(numbers, low, high).astype(self.dtype), clipped  # (N, C, H, W)

    def labels(self) -> "list[BandLabel]":
        from dithc.data.raster import BandLabel  # imports rasterio, which reading arrays does not need

        colors = {band: COLORS[place] for place, band in enumerate(self.shown)}
        units = self.units.split(", ") if ", " in self.units else [self.units] * len(self.names)
        columns = zip(self.names, units, self.scale, self.offset, self.wavelengths_nm, strict=True)
        return [
            BandLabel(name=name, units=unit, scale=scale, offset=offset, wavelength_nm=nm, shown=colors.get(i))
            for i, (name, unit, scale, offset, nm) in enumerate(columns)
        ]


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image of a product.

    Pixels are stored numbers (C, H, W). An image that exceeds memory is an iterator over consecutive rows (C, rows, W),
    which can be read once.
    """

    name: str  # of the file, without suffix
    pixels: Array | Iterator[Array]
    tags: dict[str, str]
    valid: npt.NDArray[np.bool_] | None = None  # (H, W), pixels with data; None if all have data
    shape: tuple[int, int, int] | None = None  # (C, H, W) of an image passed by rows
    categorical: bool = False  # whether overviews repeat pixels instead of averaging
    crs: str | None = None  # None for generated images without the grid of a scene
    transform: GeoTransform | None = None  # set together with `crs`


def marked(image: Image, *, bands: Bands) -> Array:
    """Return the pixels (C, H, W) of an image, with `nodata` in invalid pixels if the type has it."""
    assert isinstance(image.pixels, np.ndarray), "only `write_geotiff` accepts an image by rows"
    if image.valid is None or bands.nodata is None:
        return image.pixels
    return np.where(image.valid, image.pixels, np.array(bands.nodata, image.pixels.dtype))


def read_window(path: Path, rows: slice, columns: slice, *, bands: Sequence[int] | None = None) -> Array:
    """Read a window (C, h, w) of a GeoTIFF that dithc wrote; `bands` are numbered from 0, by default all."""
    from dithc.data import raster

    return raster.read_window(path, rows, columns, bands=bands)


def write_geotiff(folder: Path, image: Image, *, bands: Bands) -> Path:
    """Write an image as a cloud-optimized GeoTIFF and return its path; OSError if the disk is full or not writable."""
    from dithc.data.raster import write_cog

    path = folder / f"{image.name}.tif"
    pixels: Array | Iterator[Array] = image.pixels
    shape: tuple[int, ...] | None = image.shape
    if shape is None:
        array = marked(image, bands=bands)
        pixels, shape = array, array.shape
    write_cog(
        path,
        pixels,
        shape=shape,
        dtype=bands.dtype,
        bands=bands.labels(),
        tags=image.tags,
        nodata=bands.nodata,
        valid=image.valid if bands.nodata is None else None,
        crs=image.crs,
        transform=image.transform,
        resampling="nearest" if image.categorical else "cubic",
    )
    return path
