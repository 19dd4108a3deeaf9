"""A file of pixels, GeoTIFF or .npy, read as (C, H, W) with its place, after checks of its shape and grid."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np

from dithc.data.grids import GeoTransform
from dithc.data.npy import read_npy
from dithc.data.raster import RasterInfo, read_raster
from dithc.data.scene import Array, Place, Reason, Refused

TOLERANCE = 0.01
"""Relative difference of two pixel sizes that are still the same."""
LEAST_GSD_M, MOST_GSD_M = 0.001, 1e5
FARTHEST_M = 1e8
"""Coordinates of projected systems stay below the Earth's circumference, 4e7 m."""


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Pixels (C, H, W) as stored in the file, where they are, and the file's own value for no data."""

    pixels: Array
    place: Place
    nodata: float | None


def read_pixels(
    path: Path, *, bands: list[str], layout: Literal["chw", "hwc"], gsd_m: float, georeferenced: bool = False
) -> Raw:
    """Reads one file.

    Args:
        path: a .npy file, or a raster that GDAL recognises by content.
        bands: names of the bands it should hold.
        layout: order of axes in .npy files.
        gsd_m: pixel size where the file has no georeference.
        georeferenced: whether a raster without a coordinate reference system is refused.

    Raises:
        Refused: number of bands, layout, coordinate reference system or grid are not as they should be.
        OSError, ValueError: the file is missing or cut short.
    """
    if path.suffix.lower() == ".npy":
        return Raw(pixels=as_chw(read_npy(path), bands=bands, layout=layout), place=Place(gsd_m=gsd_m), nodata=None)
    return placed(*read_raster(path), bands=bands, gsd_m=gsd_m, georeferenced=georeferenced)


def placed(pixels: Array, info: RasterInfo, *, bands: list[str], gsd_m: float, georeferenced: bool) -> Raw:
    """What `read_raster` gave, checked as `read_pixels` does."""
    pixels = as_chw(pixels, bands=bands, layout="chw")
    return Raw(pixels=pixels, place=_place(info, gsd_m=gsd_m, georeferenced=georeferenced), nodata=info.nodata)


def as_chw(array: Array, *, bands: list[str], layout: Literal["chw", "hwc"]) -> Array:
    """The array as (C, H, W), with C the number of bands.

    Raises:
        Refused: the declared axis has another length; if the other layout would fit, the remedy says so.
    """
    count = len(bands)
    if array.ndim == 2 and count == 1:
        return array[np.newaxis]  # (1, H, W)
    axes = "x".join(map(str, array.shape))
    wanted = (
        f"{count} bands ({', '.join(bands)}) on the {'first' if layout == 'chw' else 'last'} axis (layout {layout})"
    )
    if array.ndim != 3:
        raise Refused(
            Reason.WRONG_LAYOUT,
            f"the array has {array.ndim} axes",
            got=axes,
            expected=f"three axes, {wanted}",
            remedy="save one scene per file with all its bands, or take the file out of the folder",
        )
    declared, other = (array.shape[0], array.shape[2]) if layout == "chw" else (array.shape[2], array.shape[0])
    if declared == count:
        return array if layout == "chw" else np.moveaxis(array, 2, 0)  # (C, H, W)
    if other == count:
        instead = "hwc" if layout == "chw" else "chw"
        raise Refused(
            Reason.WRONG_LAYOUT,
            "the axes are in another order than declared",
            got=axes,
            expected=wanted,
            remedy=f"set `layout: {instead}` for .npy files; write a GeoTIFF again with its bands first",
        )
    raise Refused(
        Reason.BAND_COUNT,
        "the file has another number of bands than declared",
        got=f"{declared} bands ({axes})",
        expected=wanted,
        remedy="name all bands of the file in `bands`, in its order, or cut the others off; none is dropped silently",
    )


def _place(info: RasterInfo, *, gsd_m: float, georeferenced: bool) -> Place:
    a, b, _, d, e, _ = info.transform
    if info.crs is None:
        if georeferenced or info.points or (a, b, d, e) != (1.0, 0.0, 0.0, 1.0):
            raise Refused(
                Reason.CRS_MISSING,
                "the raster has no coordinate reference system",
                got=f"transform {info.transform}, {info.points} control points, no system",
                expected="an orthorectified GeoTIFF in a projected system, such as UTM",
                remedy="orthorectify it: with its .rpb beside it set `height_m` or `dem` (kind gaofen2), else with gdalwarp; or "
                "cut it to .npy if its place does not matter",
            )
        return Place(gsd_m=gsd_m)
    check_projected(info)
    gsd = square_pixel(info.transform)
    return Place(gsd_m=gsd, crs=info.crs, epsg=info.epsg, transform=info.transform)


def check_projected(info: RasterInfo) -> None:
    """Refuses a coordinate reference system that is not projected in metres."""
    if not info.metric:
        raise Refused(
            Reason.CRS_WRONG,
            "the coordinate reference system is not projected in metres",
            got=info.crs,
            expected="a projected system in metres, such as UTM (EPSG:326xx, EPSG:327xx)",
            remedy="warp the raster to its UTM zone (gdalwarp -t_srs EPSG:326xx)",
        )


def square_pixel(transform: GeoTransform) -> float:
    """The side of a pixel in metres; refuses grids that are not on the Earth, rotated, or of pixels that are not square."""
    a, b, c, d, e, f = transform
    if not (
        LEAST_GSD_M <= abs(a) <= MOST_GSD_M and abs(c) <= FARTHEST_M and abs(f) <= FARTHEST_M and isfinite(b + d + e)
    ):
        raise Refused(
            Reason.GRID_MISMATCH,
            "the grid is not one on the Earth",
            got=f"transform {transform}",
            expected=f"pixels of {LEAST_GSD_M:g} m to {MOST_GSD_M:g} m, coordinates below {FARTHEST_M:g} m",
            remedy="write the raster's georeference again (gdal_edit -a_ullr), or take it out of the folder",
        )
    if b or d:
        raise Refused(
            Reason.GRID_MISMATCH,
            "the grid is rotated",
            got=f"transform {transform}",
            expected="rows along x and columns along y",
            remedy="warp the raster to a north-up grid (gdalwarp)",
        )
    if abs(abs(a) - abs(e)) > TOLERANCE * abs(a):
        raise Refused(
            Reason.RESOLUTION_MISMATCH,
            "pixels are not square",
            got=f"{abs(a):g} m by {abs(e):g} m",
            expected="the same size in both directions",
            remedy="resample the raster to square pixels (gdalwarp -tr)",
        )
    return abs(a)
