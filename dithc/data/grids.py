"""Grids of georeferenced pixels: affine coefficients, coordinate transformations, and resampling of bands."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT
from rasterio.warp import reproject, transform_bounds
from rasterio.warp import transform as warp_points

from dithc.data.geometry import ECCENTRICITY_2, SEMI_MAJOR_M, Floats, GeoTransform

MIN_STEP_M, MIN_STEP_DEGREES = 100.0, 0.001
"""Shortest distance between transformed points: PROJ iterates some projections to about a millimeter."""


TOLERANCE = 1e-6
"""Largest error of transformed coordinates in `warp`, in pixels of the source."""
Resample = Literal["bilinear", "nearest"]


def north_up(*, left: float, top: float, gsd: float) -> GeoTransform:
    """Return coefficients (a, b, c, d, e, f) of a north-up grid with upper-left corner (left, top), in meters."""
    return (gsd, 0.0, left, 0.0, -gsd, top)


def reproject_points(
    first: list[float], second: list[float], *, source_epsg: int, target_epsg: int
) -> tuple[list[float], list[float]]:
    """Transform points between coordinate systems; the order is always (x or longitude, y or latitude)."""
    xs, ys = warp_points(CRS.from_epsg(source_epsg), CRS.from_epsg(target_epsg), first, second)
    return list(xs), list(ys)


def degrees(xs: Floats, ys: Floats, *, crs: str) -> tuple[Floats, Floats]:
    """Return WGS84 longitudes and latitudes of points (N,) of a system (`EPSG:n` or WKT); NaN outside of the system."""
    try:
        lonlat = np.array(warp_points(_system(crs), _system("EPSG:4326"), xs.tolist(), ys.tolist()))
    except Exception:  # GDAL's exceptions have no public base class; a point is outside of the system
        lonlat = np.full((2, len(xs)), np.nan)
    lonlat[:, ~np.isfinite(lonlat).all(0)] = np.nan
    return lonlat[0], lonlat[1]


def pixel_sides_m(transform: GeoTransform, *, shape: tuple[int, int], crs: str) -> tuple[float, float]:
    """Return the lengths in m of a pixel along row and column on the WGS84 ellipsoid, at the center of the grid.

    `transform` is in meters or degrees of `crs` (`EPSG:n` or WKT). The result is NaN if the center is outside of the
    system.
    """
    shortest = MIN_STEP_DEGREES if _system(crs).is_geographic else MIN_STEP_M
    affine = Affine(*transform)
    x, y = affine * (shape[1] / 2, shape[0] / 2)
    sides = np.hypot(affine.a, affine.d), np.hypot(affine.b, affine.e)
    half = [max(side, shortest) / 2 for side in sides]
    xs, ys = x + half[0] * np.array([-1, 1, 0, 0]), y + half[1] * np.array([0, 0, -1, 1])
    longitudes, latitudes = np.radians(degrees(xs, ys, crs=crs))
    normal = SEMI_MAJOR_M / np.sqrt(1 - ECCENTRICITY_2 * np.sin(latitudes) ** 2)
    flat = normal * np.cos(latitudes)
    points = np.stack(
        [flat * np.cos(longitudes), flat * np.sin(longitudes), normal * (1 - ECCENTRICITY_2) * np.sin(latitudes)]
    )  # (3, 4), meters from the center of the Earth
    across, down = np.linalg.norm(points[:, 1::2] - points[:, ::2], axis=0) / (2 * np.array(half)) * sides
    return float(across), float(down)


@lru_cache(maxsize=256)
def _system(crs: str) -> CRS:
    return CRS.from_user_input(crs)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of square pixels: coordinate system (`EPSG:n` or WKT), affine coefficients and shape (H, W)."""

    crs: str
    epsg: int | None
    transform: GeoTransform
    shape: tuple[int, int]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Bounds (left, right, bottom, top)."""
        a, _, c, _, e, f = self.transform
        (left, right), (bottom, top) = sorted((c, c + a * self.shape[1])), sorted((f, f + e * self.shape[0]))
        return left, right, bottom, top

    @property
    def is_global(self) -> bool:
        """True if the columns cover all longitudes once."""
        return _system(self.crs).is_geographic and abs(self.transform[0] * self.shape[1] - 360.0) < MIN_STEP_DEGREES

    def rows(self, first: int, last: int) -> "Grid":
        """Return the grid of the rows `first` to `last - 1`."""
        a, b, c, d, e, f = self.transform
        return replace(self, transform=(a, b, c, d, e, f + first * e), shape=(last - first, self.shape[1]))

    def overlaps(self, other: "Grid") -> bool:
        """Return whether the bounds of two north-up grids overlap; True if their systems do not decide it."""
        left, right, bottom, top = self.bounds
        try:
            west, south, east, north = transform_bounds(_system(self.crs), _system(other.crs), left, bottom, right, top)
        except Exception:  # GDAL's exceptions have no public base class; the bounds are outside of the other system
            return False
        left, right, bottom, top = other.bounds
        crosses = not west <= east or not np.isfinite([west, south, east, north]).all()  # the antimeridian, or a pole
        return bool(crosses or (west < right and left < east and south < top and bottom < north))

    def times(self, shape: tuple[int, int], transform: GeoTransform) -> int:
        """Return the pixels per side in one pixel of an aligned band (h, w); 0 if the grids are not aligned."""
        a, b, left, d, e, top = transform
        times = max(1, round(a / self.transform[0]))
        fine = (a / times, b, left, d, e / times, top)
        return times if fine == self.transform and (times * shape[0], times * shape[1]) == self.shape else 0


def regrid(
    band: npt.NDArray[Any], *, transform: GeoTransform, grid: Grid, how: Resample, nodata: float
) -> npt.NDArray[Any]:
    """Resample one band (h, w) to another grid (H, W) of the same coordinate reference system and dtype.

    `nodata` pixels are excluded from interpolation; a target pixel without other neighbors becomes `nodata`.
    """
    if how == "nearest" and (times := grid.times((band.shape[0], band.shape[1]), transform)):
        return band.repeat(times, axis=0).repeat(times, axis=1)  # (H, W), same result in a tenth of the time
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


def warp(bands: Floats, *, source: Grid, grid: Grid, how: Resample) -> Floats:
    """Resample bands (C, h, w) from their grid to a grid (H, W) of any system; NaN is missing, as `nodata` in `regrid`."""
    (count, height, width), (rows, columns) = bands.shape, grid.shape
    profile = {"count": count, "height": height, "width": width, "dtype": str(bands.dtype), "nodata": np.nan}
    profile |= {"crs": source.crs, "transform": Affine(*source.transform)}
    target = {"crs": grid.crs, "transform": Affine(*grid.transform), "height": rows, "width": columns}
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", **profile) as file:
            file.write(bands)
        # `reproject` approximates transformations to an eighth of a pixel and ignores a smaller tolerance.
        with (
            memory.open() as file,
            WarpedVRT(file, resampling=Resampling[how], tolerance=TOLERANCE, nodata=np.nan, **target) as warped,
        ):
            values = np.full((count, rows, columns), np.nan, bands.dtype)  # far from the source, nothing is written
            warped.read(out=values)
    return values
