"""Grids of fields from the coordinates and the grid mapping of the CF conventions.

Legend: H, W field.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pyproj

from dithc.data.grids import GeoTransform, pixel_sides_m
from dithc.data.scene import Georeference, Reason, SceneRejectedError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SPACING_TOLERANCE = 0.01
"""Largest distance of a coordinate from a regular axis, in cells. Coordinates are often single precision."""
ROTATED = "rotated_latitude_longitude"
METERS = {"m": 1.0, "meter": 1.0, "metre": 1.0, "km": 1e3, "kilometer": 1e3, "kilometre": 1e3, "": 1.0}
NO_CRS, IRREGULAR, NO_COORDINATES = "no-crs", "irregular-grid", "no-coordinates"


@dataclass(frozen=True, kw_only=True)
class FieldGrid:
    """Place of a field, and the order of its rows and columns that is north up."""

    place: Georeference
    rows: Ints  # (H,) indices in the file, from north to south
    columns: Ints  # (W,) indices in the file, from west to east
    note: str | None = None  # reason why the place is incomplete


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Coordinate variable of a dimension: values in degrees or in `units` of length."""

    values: Floats
    units: str
    geographic: bool  # latitude or longitude


def field_grid(y: Axis | None, x: Axis | None, mapping: dict[str, Any] | None, *, shape: tuple[int, int]) -> FieldGrid:
    """Return the grid of a field (H, W) from its axes (None without coordinates) and the attributes of its grid mapping.

    Latitude and longitude without a mapping are WGS84. Longitudes are -180 to 180 degrees, or 0 to 360 if the field
    crosses the antimeridian. Raises SceneRejectedError for irregular axes, except those of a rotated pole, and for
    coordinates in other units than the system.
    """
    unplaced = FieldGrid(
        place=Georeference(gsd_m=0.0), rows=np.arange(shape[0]), columns=np.arange(shape[1]), note=NO_COORDINATES
    )
    if y is None or x is None:
        return unplaced
    system = _system(mapping, geographic=y.geographic and x.geographic)
    angular = y.geographic and x.geographic if system is None else system.is_geographic
    factor = 1.0 if angular else METERS.get(x.units.lower().removesuffix("s"))
    if system is not None and (factor is None or (x.units != y.units and not angular)):
        raise SceneRejectedError(
            Reason.CRS_WRONG,
            "coordinates are not lengths",
            got=f"units {x.units!r} and {y.units!r}",
            expected="m or km for projected coordinates",
            fix="correct the attribute `units` of the coordinates, and `grid_mapping` of the variable",
        )
    side_m, factor = factor or 0.0, factor or 1.0
    rows, north = np.argsort(-y.values), np.sort(y.values)[::-1] * factor
    origins = (-180.0, 0.0) if angular else ()
    wrapped = [(x.values - origin) % 360.0 + origin for origin in origins]
    axes = [(np.argsort(values), np.sort(values) * factor) for values in (*wrapped, x.values)]
    regular = next(((columns, east) for columns, east in axes if _is_regular(east)), None)
    if regular is None or not _is_regular(north):
        if (mapping or {}).get("grid_mapping_name") == ROTATED:
            return FieldGrid(place=unplaced.place, rows=rows, columns=axes[-1][0], note=IRREGULAR)
        raise _irregular_error(north if regular else x.values * factor, name="x" if regular is None else "y")
    columns, east = regular
    dx, dy = (east[-1] - east[0]) / (shape[1] - 1), (north[0] - north[-1]) / (shape[0] - 1)
    transform = (float(dx), 0.0, float(east[0] - dx / 2), 0.0, float(-dy), float(north[0] + dy / 2))
    if system is None:
        return FieldGrid(
            place=Georeference(gsd_m=float(dx) if side_m else 0.0), rows=rows, columns=columns, note=NO_CRS
        )
    return FieldGrid(place=_georeference(system, transform, shape), rows=rows, columns=columns)


def _system(mapping: dict[str, Any] | None, *, geographic: bool) -> pyproj.CRS | None:
    """Return the coordinate reference system of a grid mapping; None if it is incomplete or absent."""
    if mapping is not None:
        attributes = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in mapping.items()}
        single = {
            name: value[0] if isinstance(value, list) and len(value) == 1 else value
            for name, value in attributes.items()
        }
        try:
            return pyproj.CRS.from_cf(single)
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
        raise SceneRejectedError(
            Reason.GRID_MISMATCH,
            "the grid is not on the Earth",
            got=f"transform {transform} in {crs[:40]}",
            expected="coordinates inside the system of the grid mapping",
            fix="correct the coordinates, their `units` or the grid mapping of the file",
        )
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
