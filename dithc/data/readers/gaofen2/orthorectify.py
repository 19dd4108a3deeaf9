"""Orthorectification: heights, ground grids, and GDAL's transformer with rational polynomials."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.rpc import RPC
from rasterio.transform import Affine
from rasterio.warp import reproject
from rasterio.warp import transform as warp_points

from dithc.core.logging import UserError, user_error
from dithc.data.grids import Grid, north_up, reproject_points
from dithc.data.raster import READING, RasterInfo, read_raster
from dithc.data.readers.gaofen2.rpc import Rpc
from dithc.data.scene import find_invalid

BORDER_POINTS = 11
"""Points along each side of an image, from which its bounding box on the ground is computed."""
METER_UNITS = ("", "m", "metre", "metres", "meter", "meters")
LOWEST_M, HIGHEST_M = -1000.0, 9000.0
"""Bounds of plausible heights: the Dead Sea shore is at -430, Everest at 8849. Undeclared no-data values lie outside.
"""


@dataclass(frozen=True, kw_only=True)
class Heights:
    """Heights of the ground above the WGS84 ellipsoid (`read_heights`)."""

    options: dict[str, Any]  # of GDAL's transformer
    values: npt.NDArray[np.float32]  # (H, W), NaN without data; (1, 1) without a DEM
    grid: Grid | None = None  # None without a DEM

    def extremes(self, longitudes: npt.NDArray[Any], latitudes: npt.NDArray[Any]) -> tuple[float, float]:
        """Return least and greatest height in the bounding box of points; OSError without a height in the DEM."""
        part = self.values
        if self.grid is not None:
            with _convert_errors("its geometry leads off the Earth"):
                xs, ys = warp_points(CRS.from_epsg(4326), self.grid.crs, longitudes.tolist(), latitudes.tolist())
            if not np.isfinite([xs, ys]).all():
                raise OSError("its geometry leads to points without coordinates in the DEM (`source.dem`)")
            columns, rows = ~Affine(*self.grid.transform) * (np.array(xs), np.array(ys))
            rows, columns = np.sort(rows), np.sort(columns)
            part = part[max(floor(rows[0]), 0) : ceil(rows[-1]) + 1, max(floor(columns[0]), 0) : ceil(columns[-1]) + 1]
        if not np.isfinite(part).any():
            raise OSError("the DEM (`source.dem`) has no height in the area of the image")
        return float(np.nanmin(part)), float(np.nanmax(part))


def read_heights(dem: Path | None, *, height_m: float) -> Heights:
    """Read heights for `orthorectify`: a DEM plus `height_m`, or `height_m` everywhere; UserError for another raster."""
    if dem is None:
        return Heights(options={"RPC_HEIGHT": height_m}, values=np.full((1, 1), height_m, np.float32))
    try:
        heights, info = read_raster(dem)
    except (OSError, UserError) as error:  # keeps title and value of a UserError
        raise _dem_error(dem, got=": ".join(line.strip() for line in str(error).splitlines()[:2])) from error
    values = _check_heights(dem, heights, info) + np.float32(height_m)
    grid = Grid(crs=info.crs or "", epsg=info.epsg, transform=info.transform, shape=values.shape)
    profile: dict[str, Any] = {
        "count": 1,
        "height": info.height,
        "width": info.width,
        "dtype": "float32",
        "nodata": np.nan,
    }
    profile |= {"crs": grid.crs, "transform": Affine(*info.transform)}
    memory = rasterio.MemoryFile()
    with rasterio.Env(**READING), memory.open(driver="GTiff", **profile) as target:
        target.write(values, 1)
    # A vertical datum shift would depend on installed grids. `height_m` supplies it instead.
    options = {"RPC_DEM": memory.name, "RPC_DEM_APPLY_VDATUM_SHIFT": "NO"}
    terrain = Heights(options=options, values=values, grid=grid)
    weakref.finalize(terrain, memory.close)
    return terrain


def _check_heights(dem: Path, heights: npt.NDArray[Any], info: RasterInfo) -> npt.NDArray[np.float32]:
    """Return heights (H, W) in meters, NaN for no data; raise UserError for impossible values."""
    if info.crs is None or info.count != 1 or heights.dtype.kind not in "iuf":
        raise _dem_error(dem, got=f"{info.count} bands of {info.dtype}, coordinate reference system {info.crs}")
    label = info.labels[0]
    if label.units.lower() not in METER_UNITS or (label.scale, label.offset) != (1.0, 0.0):
        raise _dem_error(dem, got=f"heights in {label.units!r}, scale {label.scale:g}, offset {label.offset:g}")
    a, b, c, d, e, f = info.transform
    if not (np.isfinite([a, b, c, d, e, f]).all() and a * e - b * d and info.has_grid):
        raise _dem_error(dem, got=f"transform {info.transform}, which does not define a grid")
    values: npt.NDArray[np.float32] = heights[0].astype(np.float32)
    values[find_invalid(heights, info.nodata, masked=info.masked)[0]] = np.nan
    if np.isnan(values).all():
        raise _dem_error(dem, got="no height anywhere")
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < LOWEST_M or high > HIGHEST_M:
        raise _dem_error(
            dem,
            got=f"heights of {low:g} to {high:g}, no data {info.nodata}",
            fix="store the no-data value in the file (gdal_edit -a_nodata), or convert the heights to meters",
        )
    return values


def ortho_grid(rpc: Rpc, *, shape: tuple[int, int], gsd_m: float, multiple: int, heights: Heights) -> Grid:
    """Return the north-up UTM grid of an image of `shape` lines and samples, in multiples of `multiple` pixels.

    The corner is aligned to the same multiple, so that grids of several dates share their pixels. Raises UserError or
    OSError if the geometry has no solution, leads off the Earth or out of the DEM.
    """
    sides = [np.linspace(-0.5, side - 0.5, BORDER_POINTS) for side in shape]
    lines, samples = (points.ravel() for points in np.meshgrid(*sides, indexing="ij"))
    low, high = float(np.nanmin(heights.values)), float(np.nanmax(heights.values))
    for _ in range(2):  # first the heights of the entire DEM, then those in the resulting box
        ends = [rpc.locate(lines, samples, np.full_like(lines, height)) for height in (low, high)]
        longitudes, latitudes = (np.concatenate(parts) for parts in zip(*ends, strict=True))
        low, high = heights.extremes(longitudes, latitudes)
    with _convert_errors("its geometry leads off the Earth"):
        xs, ys = reproject_points(longitudes.tolist(), latitudes.tolist(), source_epsg=4326, target_epsg=rpc.epsg)
    if not np.isfinite([xs, ys]).all():
        raise OSError("its geometry leads off the Earth")
    step = gsd_m * multiple
    left, right, bottom, top = floor(min(xs) / step), ceil(max(xs) / step), floor(min(ys) / step), ceil(max(ys) / step)
    return Grid(
        crs=f"EPSG:{rpc.epsg}",
        epsg=rpc.epsg,
        transform=north_up(left=left * step, top=top * step, gsd=gsd_m),
        shape=((top - bottom) * multiple, (right - left) * multiple),
    )


def orthorectify(pixels: npt.NDArray[Any], rpc: Rpc, *, grid: Grid, heights: Heights) -> npt.NDArray[Any]:
    """Resample an image (C, h, w) in sensor geometry to a ground grid (C, H, W), each pixel at its height.

    Resampling is bilinear; for a coarser grid it covers all source pixels of a target pixel. Pixels of 0 in all bands
    are no data. Target pixels without data or outside the DEM are 0 in all bands. The dtype stays.
    """
    target = np.zeros((len(pixels), *grid.shape), dtype=pixels.dtype)  # (C, H, W)
    with _convert_errors("it cannot be orthorectified"), rasterio.Env(**READING):
        reproject(
            pixels,
            target,
            rpcs=RPC(**asdict(rpc)),
            src_crs=CRS.from_epsg(4326),
            src_nodata=0,
            dst_transform=Affine(*grid.transform),
            dst_crs=grid.crs,
            dst_nodata=0,
            resampling=Resampling.bilinear,
            tolerance=0.0,  # exact height for every pixel, without interpolation along a row
            UNIFIED_SRC_NODATA="YES",
            **heights.options,
        )
    return target


@contextmanager
def _convert_errors(message: str) -> Iterator[None]:
    """Convert errors of GDAL for implausible coefficients to an OSError with this message."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{message}: {error}") from error


def _dem_error(
    path: Path, *, got: str, fix: str = "correct `source.dem`, or set a constant height with `source.height_m`"
) -> UserError:
    expected = f"a GeoTIFF with coordinate system and one band of heights, {LOWEST_M:g} to {HIGHEST_M:g} meters"
    return user_error(f"{path} (`source.dem`) cannot be used as heights", got=got, expected=expected, fix=fix)
