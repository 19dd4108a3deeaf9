"""The one place rasterio enters: georeferenced rasters, written, read back exactly, and brought onto another grid."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import reproject
from rasterio.warp import transform as warp_points

Driver = Literal["GTiff", "JP2OpenJPEG"]
GeoTransform = tuple[float, float, float, float, float, float]

# JPEG 2000 is only lossless with the reversible 5/3 wavelet, every quality layer kept, and no chroma subsampling.
CREATION_OPTIONS: dict[Driver, dict[str, str]] = {
    "GTiff": {"compress": "deflate", "predictor": "2"},
    "JP2OpenJPEG": {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"},
}


def north_up(*, left: float, top: float, gsd: float) -> GeoTransform:
    """Affine coefficients (a, b, c, d, e, f) of a north-up grid with its upper-left corner at (left, top), in metres."""
    return (gsd, 0.0, left, 0.0, -gsd, top)


def reproject_points(
    first: list[float], second: list[float], *, source_epsg: int, target_epsg: int
) -> tuple[list[float], list[float]]:
    """Points from one coordinate system to another; always (x or longitude, y or latitude)."""
    xs, ys = warp_points(CRS.from_epsg(source_epsg), CRS.from_epsg(target_epsg), first, second)
    return list(xs), list(ys)


def write_geotiff(
    path: Path,
    array_chw: npt.NDArray[Any],
    *,
    transform: GeoTransform,
    epsg: int,
    nodata: float | None = None,
    driver: Driver = "GTiff",
    verify: bool = False,
) -> None:
    """Writes one raster losslessly; the caller chooses a temporary name or folder if it must appear atomically.

    Args:
        path: file to write; its folder exists.
        array_chw: (C, H, W), any dtype the driver stores losslessly (GTiff: all; JP2OpenJPEG: uint8, uint16, int16).
        transform: affine coefficients (a, b, c, d, e, f): x = a*col + b*row + c, y = d*col + e*row + f.
        epsg: code of the coordinate reference system.
        nodata: value written as the file's nodata; Sentinel-2 JP2 files carry none (their metadata says 0).
        verify: read the file back and compare every pixel, so that a full disk or a lossy codec cannot pass unnoticed.

    Raises:
        ValueError: array_chw has not three dimensions.
        OSError: the file cannot be written, or does not hold what was written.
    """
    if array_chw.ndim != 3:
        raise ValueError(f"write_geotiff takes an array (C, H, W), got the shape {array_chw.shape}; add the band axis")
    count, height, width = array_chw.shape
    profile = {"count": count, "height": height, "width": width, "dtype": array_chw.dtype, "nodata": nodata}
    place = {"crs": CRS.from_epsg(epsg), "transform": Affine(*transform)}
    try:
        with rasterio.open(path, "w", driver=driver, **profile, **place, **CREATION_OPTIONS[driver]) as target:
            target.write(array_chw)
        if verify:
            with rasterio.open(path) as source:
                same = np.array_equal(source.read(), array_chw)
    except rasterio.errors.RasterioError as error:
        raise OSError(f"cannot write {path} with GDAL driver {driver}: {error}") from error
    if verify and not same:
        raise OSError(f"{path} reads back other pixels than were written with {driver}: is the disk full or failing?")


@dataclass(frozen=True, kw_only=True)
class RasterInfo:
    """What a raster file says of itself.

    Attributes:
        driver: GDAL driver that reads it; the file's name may say otherwise.
        crs: `EPSG:n`, or well-known text where the system has no code; None where the file has no system.
        epsg: the code, None without one.
        metric: whether the system is projected with the metre as its unit.
        transform: affine coefficients (a, b, c, d, e, f).
        nodata: value the file declares as no data.
    """

    driver: str
    count: int
    height: int
    width: int
    dtype: str
    crs: str | None
    epsg: int | None
    metric: bool
    transform: GeoTransform
    nodata: float | None


def read_raster(path: Path) -> tuple[npt.NDArray[Any], RasterInfo]:
    """Reads a whole GeoTIFF or JPEG 2000 file, recognised by content, not by name.

    Only these two drivers are allowed: GDAL's SENTINEL2 driver gives zeros without an error where band files are missing.

    Returns:
        The pixels (C, H, W) in the file's dtype, and what the file says of itself.

    Raises:
        OSError: the file is missing, cut short, or of another format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path) as source:
                if source.driver not in CREATION_OPTIONS:
                    raise OSError(f"its format is {source.driver}, not one of {', '.join(CREATION_OPTIONS)}")
                return source.read(), _info(source)
    except rasterio.errors.RasterioError as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise OSError(f"{error}{cause}") from error


def _info(source: Any) -> RasterInfo:
    crs = source.crs if source.crs else None
    epsg = crs.to_epsg() if crs else None
    return RasterInfo(
        driver=source.driver,
        count=source.count,
        height=source.height,
        width=source.width,
        dtype=source.dtypes[0],
        crs=None if crs is None else f"EPSG:{epsg}" if epsg else crs.to_wkt(),
        epsg=epsg,
        metric=crs is not None and crs.is_projected and crs.linear_units_factor[1] == 1.0,
        transform=tuple(source.transform)[:6],
        nodata=source.nodata,
    )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of square pixels: its system (`EPSG:n` or well-known text), affine coefficients and shape (H, W)."""

    crs: str
    epsg: int | None
    transform: GeoTransform
    shape: tuple[int, int]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top."""
        a, _, c, _, e, f = self.transform
        (left, right), (bottom, top) = sorted((c, c + a * self.shape[1])), sorted((f, f + e * self.shape[0]))
        return left, right, bottom, top


def regrid(
    band: npt.NDArray[Any],
    *,
    transform: GeoTransform,
    grid: Grid,
    how: Literal["bilinear", "nearest"],
    nodata: float,
) -> npt.NDArray[Any]:
    """Brings one band (h, w) onto another grid of the same coordinate reference system.

    `nodata` pixels take no part in the interpolation; a target pixel without any other neighbour becomes `nodata`.

    Returns:
        (H, W) of `grid.shape`, same dtype.
    """
    target = np.full(grid.shape, nodata, dtype=band.dtype)
    reproject(
        band,
        target,
        src_transform=Affine(*transform),
        src_crs=grid.crs,
        src_nodata=nodata,
        dst_transform=Affine(*grid.transform),
        dst_crs=grid.crs,
        dst_nodata=nodata,
        resampling=Resampling[how],
    )
    return target  # (H, W)
