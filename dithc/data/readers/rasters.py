"""Pixels of GeoTIFF and .npy files as (C, H, W) with their georeference, after checks of shape and grid."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np

from dithc.core.logging import get_logger
from dithc.data.geometry import GeoTransform
from dithc.data.grids import pixel_sides_m
from dithc.data.npy_writer import read_npy
from dithc.data.raster import BandLabel, RasterInfo, read_raster
from dithc.data.scene import Array, Georeference, Reason, SceneRejectedError, find_invalid

DTYPES = {"dn": "uint16", "byte": "uint8"}
TOLERANCE = 0.01
"""Largest relative difference of equal pixel sizes."""
MIN_GSD_M, MAX_GSD_M = 0.001, 1e5
FARTHEST_M = 1e8
"""Coordinates of projected systems stay below the Earth's circumference, 4e7 m."""
MAX_OBLONG = 1.1
"""Ratio of the sides of a pixel on the ground above which a warning is logged."""
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RasterPixels:
    """Pixels (C, H, W) as stored, their place, and the validity that the file declares."""

    pixels: Array
    place: Georeference
    nodata: float | None = None
    masked: Array | None = None  # (H, W)
    labels: tuple[BandLabel, ...] = ()  # none of .npy
    companions: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def invalid(self, *nodata: float | None, declared: float | None = None) -> Array:
        """Return where values are not finite, equal a no-data value, or are masked by the file, (C, H, W)."""
        if declared is not None and self.pixels.dtype.kind in "iu":
            limits = np.iinfo(self.pixels.dtype)
            if not (limits.min <= declared <= limits.max and declared == int(declared)):
                raise SceneRejectedError(
                    Reason.WRONG_DTYPE,
                    "no pixel can have the declared no-data value",
                    got=f"`nodata` {declared:g}",
                    expected=f"a value of {self.pixels.dtype}: {limits.min} to {limits.max}",
                    fix="correct `source.nodata`, or remove it to use the value of each file",
                )
        return find_invalid(self.pixels, declared, *nodata, masked=self.masked)


def read_pixels(
    path: Path, *, bands: list[str], layout: Literal["chw", "hwc"], gsd_m: float, georeferenced: bool = False
) -> RasterPixels:
    """Read a .npy file with axes in `layout`, or a raster that GDAL recognizes by content.

    `gsd_m` is the pixel size without georeference; `georeferenced` rejects rasters without coordinate reference system.
    """
    if path.suffix.lower() == ".npy":
        return RasterPixels(pixels=as_chw(read_npy(path), bands=bands, layout=layout), place=Georeference(gsd_m=gsd_m))
    return convert(*read_raster(path, bands=bands), bands=bands, gsd_m=gsd_m, georeferenced=georeferenced)


def convert(pixels: Array, info: RasterInfo, *, bands: list[str], gsd_m: float, georeferenced: bool) -> RasterPixels:
    """Check the result of `read_raster` as `read_pixels` does."""
    return RasterPixels(
        pixels=as_chw(pixels, bands=bands, layout="chw", alpha=info.alpha),
        place=_georeference(info, gsd_m=gsd_m, georeferenced=georeferenced),
        nodata=info.nodata,
        masked=info.masked,
        labels=info.labels,
        companions=info.companions,
        notes=("multi-page",) if info.pages else (),
    )


def as_chw(array: Array, *, bands: list[str], layout: Literal["chw", "hwc"], alpha: int = 0) -> Array:
    """Return an array (C, H, W), (H, W, C) or, for a single band, (H, W) as (C, H, W), with C the number of bands.

    `alpha` counts alpha bands of the file that are not in the array. Raises SceneRejectedError, naming the fitting layout, if the
    declared axis has another length.
    """
    count = len(bands)
    if array.ndim == 2 and count == 1:
        return array[np.newaxis]  # (1, H, W)
    axes = "x".join(map(str, array.shape))
    expected = (
        f"{count} bands ({', '.join(bands)}) on the {'first' if layout == 'chw' else 'last'} axis (layout {layout})"
    )
    if array.ndim != 3:
        fix = "save one scene per file with all its bands, or remove the file from the folder"
        title = f"the array has {array.ndim} axes"
        raise SceneRejectedError(Reason.WRONG_LAYOUT, title, got=axes, expected=f"three axes, {expected}", fix=fix)
    declared, other = (array.shape[0], array.shape[2]) if layout == "chw" else (array.shape[2], array.shape[0])
    if declared == count:
        return array if layout == "chw" else np.moveaxis(array, 2, 0)  # (C, H, W)
    if other == count:
        other_layout = "hwc" if layout == "chw" else "chw"
        fix = f"set `axis_order: {other_layout}` for .npy files; write a GeoTIFF again with its bands first"
        title = "the axes are in another order than declared"
        raise SceneRejectedError(Reason.WRONG_LAYOUT, title, got=axes, expected=expected, fix=fix)
    raise SceneRejectedError(
        Reason.BAND_COUNT,
        "the number of bands in the file differs from the declaration",
        got=f"{declared} bands ({axes})"
        + (", and an alpha band, which defines the validity of pixels" if alpha else ""),
        expected=expected,
        fix="name all bands of the file except alpha in `bands`, in its order, or remove the other bands from the file",
    )


def check_dtype(pixels: Array, *, units: str) -> None:
    """Raise SceneRejectedError unless pixels have the type of `units`, a key of `DTYPES`."""
    if pixels.dtype != DTYPES[units]:
        raise SceneRejectedError(
            Reason.WRONG_DTYPE,
            "the type of the pixels contradicts the declared units",
            got=f"{pixels.dtype}, values {pixels.min()} to {pixels.max()}",
            expected=f"{DTYPES[units]} for `units: {units}`",
            fix="correct `units`: dn is uint16, byte is uint8; or save the numbers again",
        )


def _georeference(info: RasterInfo, *, gsd_m: float, georeferenced: bool) -> Georeference:
    if info.crs is None or not info.has_grid:
        if georeferenced or info.crs is not None or info.points or info.has_grid:
            raise SceneRejectedError(
                Reason.CRS_MISSING,
                "the raster has no coordinate reference system"
                if info.crs is None
                else "the raster has a coordinate reference system and no geotransform",
                got=f"transform {info.transform}, {info.points} control points, system {info.crs}",
                expected="an orthorectified GeoTIFF in a projected system, such as UTM, with its grid or a world file (.tfw)",
                fix="orthorectify it: with its .rpb next to it set `height_m` or `dem` (kind gaofen2), else use gdalwarp; "
                "restore a lost grid (gdal_edit -a_ullr); or cut it to .npy if its place does not matter",
            )
        return Georeference(gsd_m=gsd_m)
    check_projected(info)
    gsd = ground_gsd_m(info)
    return Georeference(gsd_m=gsd, crs=info.crs, epsg=info.epsg, transform=info.transform)


def ground_gsd_m(info: RasterInfo) -> float:
    """Return the side of a pixel on the ground in meters, at the center of the raster.

    Systems with a scale true within `TOLERANCE`, such as UTM, keep the declared side. Others, such as Web Mercator,
    return the mean of both sides on the ellipsoid. Raises SceneRejectedError as `square_pixel`, and if the center is not on the
    Earth.
    """
    side = square_pixel(info.transform)
    assert info.crs is not None
    across, down = pixel_sides_m(info.transform, shape=(info.height, info.width), crs=info.crs)
    ground = (across * down) ** 0.5
    if not isfinite(ground):
        raise location_error(info.transform)
    if max(across, down) > MAX_OBLONG * min(across, down):
        log.warning(
            f"a pixel of {side:g} m in {info.crs[:40]} is {across:.4g} m by {down:.4g} m on the ground: warp such rasters to "
            "UTM (gdalwarp -t_srs EPSG:326xx), where pixels are square"
        )
    return side if abs(ground - side) <= TOLERANCE * side else ground


def check_projected(info: RasterInfo) -> None:
    if not info.metric:
        raise SceneRejectedError(
            Reason.CRS_WRONG,
            "the coordinate reference system is not projected in meters",
            got=info.crs,
            expected="a projected system in meters, such as UTM (EPSG:326xx, EPSG:327xx)",
            fix="warp the raster to its UTM zone (gdalwarp -t_srs EPSG:326xx)",
        )


def square_pixel(transform: GeoTransform) -> float:
    """Return the side of a square pixel in meters of the system; SceneRejectedError if the grid is rotated or not on the
    Earth."""
    a, b, c, d, e, f = transform
    if not (MIN_GSD_M <= abs(a) <= MAX_GSD_M and abs(c) <= FARTHEST_M and abs(f) <= FARTHEST_M and isfinite(b + d + e)):
        raise location_error(transform)
    if b or d or a < 0 or e > 0:
        raise SceneRejectedError(
            Reason.GRID_MISMATCH,
            "the grid is rotated" if b or d else "the grid is mirrored",
            got=f"transform {transform}",
            expected="columns from west to east, rows from north to south",
            fix="warp the raster to a north-up grid (gdalwarp)",
        )
    if abs(abs(a) - abs(e)) > TOLERANCE * abs(a):
        raise SceneRejectedError(
            Reason.RESOLUTION_MISMATCH,
            "pixels are not square",
            got=f"{abs(a):g} m by {abs(e):g} m",
            expected="the same size in both directions",
            fix="resample the raster to square pixels (gdalwarp -tr)",
        )
    return abs(a)


def location_error(transform: GeoTransform) -> SceneRejectedError:
    return SceneRejectedError(
        Reason.GRID_MISMATCH,
        "the grid is not on the Earth",
        got=f"transform {transform}",
        expected=f"pixels of {MIN_GSD_M:g} m to {MAX_GSD_M:g} m, coordinates below {FARTHEST_M:g} m, inside the system",
        fix="restore the raster's georeference (gdal_edit -a_ullr), or remove it from the folder",
    )
