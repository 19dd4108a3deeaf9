"""Grids of fields from the coordinates and the grid mapping of the CF conventions.

Legend: H, W field.
"""

import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pyproj

from dithc.data.geometry import GeoTransform
from dithc.data.grids import pixel_sides_m
from dithc.data.readers.rasters import location_error
from dithc.data.scene import Georeference, Reason, SceneRejectedError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SPACING_TOLERANCE = 0.01
"""Largest distance of a coordinate from a regular axis, in cells. Coordinates are often single precision."""
METERS = {"m": 1.0, "meter": 1.0, "metre": 1.0, "km": 1e3, "kilometer": 1e3, "kilometre": 1e3}
DEGREES = re.compile(r"degrees?_?(north|east|n|e)")


@dataclass(frozen=True, kw_only=True)
class FieldGrid:
    """Place of a field, and the order of its rows and columns that is north up."""

    place: Georeference
    rows: Ints  # (H,) indices in the file, from north to south
    columns: Ints  # (W,) indices in the file, from west to east
    transform: GeoTransform | None = None  # of regular axes, in meters or degrees of a system that may be unknown
    note: str | None = None  # reason why the place is incomplete


def field_grid(y: Any, x: Any, mapping: dict[str, Any] | None, *, shape: tuple[int, int]) -> FieldGrid:
    """Return the grid of a field (H, W) from its coordinate variables and the attributes of its grid mapping, if any.

    Latitude and longitude without a mapping are WGS84. Longitudes are -180 to 180 degrees, or 0 to 360 if the field
    crosses the antimeridian. Raises SceneRejectedError for irregular axes, except axes of a rotated pole.
    """
    if y is None or x is None:
        rows, columns = (np.arange(side) for side in shape)
        return FieldGrid(place=Georeference(gsd_m=0.0), rows=rows, columns=columns, note="no-coordinates")
    (ys, xs), units = (np.asarray(axis.values, np.float64) for axis in (y, x)), _units(x)
    system = _system(mapping, geographic=_is_geographic(y) and _is_geographic(x))
    angular = system is not None and system.is_geographic
    factor = 1.0 if angular else METERS.get(units, 0.0) * (units == _units(y))  # 0 if unknown
    wrapped = [(xs - origin) % 360.0 + origin for origin in (-180.0, 0.0) if angular]
    rows, orders = np.argsort(-ys), [(np.argsort(values), np.sort(values)) for values in (*wrapped, xs)]
    columns, east = next((order for order in orders if _is_regular(order[1])), orders[-1])
    irregular = [name for name, values in (("y", np.sort(ys)), ("x", east)) if not _is_regular(values)]
    if irregular and (mapping or {}).get("grid_mapping_name") != "rotated_latitude_longitude":
        raise _irregular_error(ys if "y" in irregular else xs, name=irregular[0])
    if irregular:
        return FieldGrid(place=Georeference(gsd_m=0.0), rows=rows, columns=columns, note="irregular-grid")
    dx, dy = (float(np.ptp(values)) * (factor or 1.0) / (len(values) - 1) for values in (east, ys))
    transform = (dx, 0.0, float(east[0]) * factor - dx / 2, 0.0, -dy, float(ys.max()) * factor + dy / 2)
    if system is None or not factor:
        place, note = Georeference(gsd_m=dx if factor else 0.0), "no-crs"
    else:
        place, note = _georeference(system, transform, shape), None
    own = transform if factor else None
    return FieldGrid(place=place, rows=rows, columns=columns, transform=own, note=note)


def _units(coordinate: Any) -> str:
    return str(coordinate.attrs.get("units", "")).lower().removesuffix("s")


def _is_geographic(coordinate: Any) -> bool:
    """Return whether a coordinate is latitude or longitude by its units, or by its standard name or its own."""
    name = str(coordinate.attrs.get("standard_name", coordinate.dims[0])).lower()
    return DEGREES.fullmatch(_units(coordinate)) is not None or name in ("lat", "lon", "latitude", "longitude")


def _system(mapping: dict[str, Any] | None, *, geographic: bool) -> pyproj.CRS | None:
    """Return the coordinate reference system of a grid mapping; None if it is incomplete or absent."""
    if mapping is not None:
        attributes = {name: value[0] if np.shape(value) == (1,) else value for name, value in mapping.items()}
        try:
            return pyproj.CRS.from_cf(attributes)
        except Exception:  # missing parameters raise errors of several types
            pass
    return pyproj.CRS.from_epsg(4326) if geographic else None


def _is_regular(ascending: Floats) -> bool:
    if len(ascending) < 2 or ascending[0] == ascending[-1]:
        return False
    regular = np.linspace(ascending[0], ascending[-1], len(ascending))
    return bool(np.abs(ascending - regular).max() <= SPACING_TOLERANCE * abs(regular[1] - regular[0]))


def _georeference(system: pyproj.CRS, transform: GeoTransform, shape: tuple[int, int]) -> Georeference:
    epsg = system.to_epsg()
    crs = f"EPSG:{epsg}" if epsg else system.to_wkt()
    across, down = pixel_sides_m(transform, shape=shape, crs=crs)
    gsd = (across * down) ** 0.5
    if not isfinite(gsd):
        raise location_error(transform)
    return Georeference(gsd_m=gsd, crs=crs, epsg=epsg, transform=transform)


def _irregular_error(values: Floats, *, name: str) -> SceneRejectedError:
    spacing = np.abs(np.diff(values)) if len(values) > 1 else np.zeros(1)
    return SceneRejectedError(
        Reason.GRID_MISMATCH,
        f"the {name} coordinates are not a regular axis",
        got=f"{len(values)} values, {spacing.min():.6g} to {spacing.max():.6g} apart",
        expected="at least two values with equal distances",
        fix="interpolate the file to a regular grid, for example with `cdo remapbil`",
    )
