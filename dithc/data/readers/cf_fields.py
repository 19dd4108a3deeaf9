"""Fields of one NetCDF file by the CF conventions: variables and levels as bands, read one time step at a time.

The first bytes of a file select the library: scipy for NetCDF-3, h5netcdf for NetCDF-4.

Legend: T time steps, C bands, H, W field.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dithc.config import datasets
from dithc.core.artifacts import sha256_file
from dithc.core.logging import UserError
from dithc.data.file_checks import check_memory, open_regular
from dithc.data.readers.cf_grids import Floats, field_grid
from dithc.data.scene import Reason, SceneRejectedError, find_invalid

ENGINES: dict[bytes, Literal["scipy", "h5netcdf"]] = {b"CDF\1": "scipy", b"CDF\2": "scipy", b"\x89HDF": "h5netcdf"}
BLOCK_BYTES = 64 << 20
"""Bytes of decoded steps in memory. A compressed chunk of NetCDF-4 often covers many steps."""
ROLES = {
    "time": re.compile(r"t|time"),
    "y": re.compile(r"yc?|lat|latitude|rlat|grid_latitude|projection_y_coordinate"),
    "x": re.compile(r"xc?|lon|longitude|rlon|grid_longitude|projection_x_coordinate"),
}
"""Values of `axis` and `standard_name`, and names, of the dimensions of a field."""
LARGEST = 1e15
"""Larger absolute values are fill values that the file does not declare, such as 1e20."""


class FieldFile:
    """Bands of an open file on one grid.

    Raises SceneRejectedError for a missing variable or level, a dimension without a role, several grids or an irregular
    grid. Use it within `decoding`.
    """

    def __init__(self, path: Path, source: datasets.NetcdfSource | datasets.FieldLayer) -> None:
        import xarray  # takes half a second

        self.path, self._source = path, source
        with open_regular(path) as file:
            start = file.read(4)
        if (engine := ENGINES.get(start)) is None:
            raise SceneRejectedError(
                Reason.READ_ERROR,
                "the file is neither NetCDF-3 nor NetCDF-4",
                got="NetCDF-3 with 64-bit numbers (CDF-5)" if start == b"CDF\5" else f"first bytes {start!r}",
                expected="NetCDF-3 (classic or 64-bit offset) or NetCDF-4",
                fix="convert it (`nccopy -k nc4 FILE NEW`), or replace it if it is damaged",
            )
        self._dataset = xarray.open_dataset(path, engine=engine, decode_timedelta=False)
        names: dict[str, set[str]] = {role: set() for role in ROLES}
        self._bands = [self._find(name, names) for name in source.bands]
        if shared := [", ".join(sorted(dims)) for dims in names.values() if len(dims) > 1]:
            raise _layout_error("bands have different dimensions", got="; ".join(shared), expected="one grid and time")
        self._time, y, x = (next(iter(names[role]), "") for role in ("time", "y", "x"))
        self.units = [str(band.attrs.get("units", "unknown")).replace(", ", " ") for band in self._bands]
        self.steps: int = max(band.sizes.get("time", 1) for band in self._bands)
        height, width = self._bands[0].sizes["y"], self._bands[0].sizes["x"]
        name = str(self._bands[0].attrs.get("grid_mapping", "")).partition(":")[0].strip()
        mapping = self._dataset[name].attrs if name in self._dataset.variables else None
        coordinates = self._dataset.variables
        self.grid = field_grid(coordinates.get(y), coordinates.get(x), mapping, shape=(height, width))
        self.step_bytes = 8 * len(self._bands) * height * width
        if not self.step_bytes or not self.steps:
            raise OSError("its variables have no values")
        check_memory(path, self.step_bytes, description=f"{len(self._bands)} x {height} x {width} of float64")
        self._block_steps = max(1, BLOCK_BYTES // self.step_bytes)
        self._block: tuple[int, Floats] = -1, np.empty(0)

    @cached_property
    def sha256(self) -> str:
        return sha256_file(self.path)

    def close(self) -> None:
        self._dataset.close()

    def values(self, step: int) -> Floats:
        """Return the bands (C, H, W) of a step, north up, in their units; NaN for missing cells."""
        number, row = divmod(step, self._block_steps)
        if self._block[0] != number:
            with decoding():
                self._block = number, self._read(slice(number * self._block_steps, (number + 1) * self._block_steps))
        fields: Floats = self._block[1][row]
        return fields

    def time(self, step: int) -> str | None:
        """Return the time of a step by its calendar, as 1961-01-01T12:00:00; None if the file declares no times."""
        if self._time not in self._dataset.variables:
            return None
        value = self._dataset.variables[self._time].values[step]
        if isinstance(value, np.datetime64):
            return str(np.datetime_as_string(value, unit="s"))
        return str(value.isoformat()) if hasattr(value, "isoformat") else None  # of cftime

    def _read(self, steps: slice) -> Floats:
        """Return the bands of some steps (T, C, H, W)."""
        count = len(range(self.steps)[steps])
        block = np.empty((count, len(self._bands), len(self.grid.rows), len(self.grid.columns)))
        for index, band in enumerate(self._bands):
            part = band.isel(time=steps) if "time" in band.dims else band
            order = [part.dims.index(role) for role in ROLES if role in part.dims]  # time, y, x
            block[:, index] = np.transpose(part.values, order)[..., self.grid.rows, :][..., self.grid.columns]
        block[find_invalid(block, self._source.nodata, masked=None)] = np.nan
        if (largest := np.nanmax(np.abs(block), initial=0.0)) > LARGEST:
            raise SceneRejectedError(
                Reason.OVERFLOW,
                "the file does not declare its fill value",
                got=f"values up to {largest:.4g}",
                expected=f"values up to {LARGEST:g}, and `_FillValue` or `missing_value` of missing cells",
                fix="set `nodata` of the source to this value, or write the attribute (ncatted)",
            )
        return block

    def _find(self, name: str, names: dict[str, set[str]]) -> Any:
        """Return a band as a variable with dimensions time (if it varies), y and x; add their names in the file to `names`."""
        variable, _, level = name.partition("@")
        if variable not in self._dataset.variables:
            raise _missing_error(
                f"the variable {variable!r} is missing", got=", ".join(map(str, self._dataset.data_vars))
            )
        field = self._dataset.variables[variable].copy(deep=False)
        if field.dtype.kind not in "iufb":
            raise OSError(f"the variable {variable!r} is not numeric ({field.dtype})")
        dims = {str(dim): self._role(str(dim)) for dim in field.dims}
        if not {"y", "x"} & set(dims.values()) and list(dims.values()).count(None) == 2:
            dims |= dict(zip((dim for dim, role in dims.items() if role is None), "yx", strict=True))
        free = [dim for dim, role in dims.items() if role is None]
        others = [dim for dim in free if field.sizes[dim] > 1]
        if level and not others:  # of single values, the dimension with this value
            others = [dim for dim in free if len(self._matches(dim, float(level)))] or free
        roles = [role for role in dims.values() if role is not None]
        if sorted({*roles} - {"time"}) != ["x", "y"] or len({*roles}) < len(roles) or len(others) != bool(level):
            raise _layout_error(
                f"the dimensions of {name!r} are ambiguous",
                got=", ".join(f"{dim} ({field.sizes[dim]}, {role or 'no role'})" for dim, role in dims.items()),
                expected="y, x, optionally time, and one more dimension of several values if the band names a value of it",
            )
        if level:
            field = field.isel({others[0]: self._level(others[0], float(level))})
        field = field.isel({dim: 0 for dim in field.dims if dims[str(dim)] is None})
        for dim in field.dims:
            names[dims[str(dim)] or ""].add(str(dim))
        field.dims = tuple(dims[str(dim)] for dim in field.dims)
        return field

    def _level(self, dim: str, level: float) -> int:
        matches = self._matches(dim, level)
        if len(matches) != 1:
            values = ", ".join(f"{value:g}" for value in self._coordinate(dim))
            raise _missing_error(f"{dim!r} has no value {level:g}, or has it twice", got=values)
        return int(matches[0])

    def _matches(self, dim: str, level: float) -> Any:
        """Return the indices of a value of a dimension."""
        return np.flatnonzero(np.isclose(self._coordinate(dim), level, rtol=1e-5, atol=0.0))

    def _coordinate(self, dim: str) -> Floats:
        variable = self._dataset.variables.get(dim)
        return np.asarray([] if variable is None or variable.dtype.kind not in "iuf" else variable.values, np.float64)

    def _role(self, dim: str) -> str | None:
        """Return time, y or x for a dimension by its coordinate's metadata, else by its name; None for others."""
        coordinate, role = self._dataset.variables.get(dim), None
        attributes = {} if coordinate is None else coordinate.attrs
        for text in (dim, attributes.get("standard_name"), attributes.get("axis")):
            role = next((name for name, names in ROLES.items() if names.fullmatch(str(text).lower())), role)
        if coordinate is not None and "calendar" in coordinate.encoding:
            role = "time"
        if self._source.time is not None and (dim == self._source.time or role == "time"):
            return "time" if dim == self._source.time else None
        return role


def _missing_error(problem: str, *, got: str) -> SceneRejectedError:
    fix = "correct `bands`; merge files of single variables (`cdo merge`)"
    expected = "all variables of `bands`, with their levels in the units of the file"
    return SceneRejectedError(Reason.MISSING_BAND, problem, got=got or "none", expected=expected, fix=fix)


def _layout_error(problem: str, *, got: str, expected: str) -> SceneRejectedError:
    fix = "name a value of a further dimension (`u@500`), set `time` to the dimension of the scenes, or split the file"
    return SceneRejectedError(Reason.WRONG_LAYOUT, problem, got=got, expected=expected, fix=fix)


@contextmanager
def decoding() -> Iterator[None]:
    """Convert all errors of the libraries to OSError, and suppress warnings about attributes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, MemoryError, UserError, SceneRejectedError):
        raise
    except Exception as error:  # of xarray, scipy, h5netcdf and cftime
        raise OSError(f"{type(error).__name__}: {error}") from error
