"""Conditions of tiles: place, day, sun, pixel size and satellite from the source, and derived conditions of plugins.

Legend: N tiles, K conditions of the model-ready file.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.config import datasets
from dithc.data.parquet import Kind
from dithc.data.splits import Ints
from dithc.data.tiles.condition_maps import CLOUD, GROUPS, MODEL, PARAMETERS, Condition, apply_map

COLUMNS: dict[str, Kind] = {
    "lon": "float",
    "lat": "float",
    "sensing_time": "text",
    "day_of_year": "float",
    "sun_elevation": "float",
    "sun_azimuth": "float",
    "gsd_m": "float",
    "satellite": "text",
    "sensor": "text",
}
"""Columns of `tiles.parquet`: tile center in degrees, time (UTC) and day of the scene (1.0 at the start of 1 January),
angles in degrees (azimuth clockwise from north), pixel side in meters. Columns without any value are omitted.
"""


class PluginColumns:
    """Conditions of one plugin; UserError if it declares them incorrectly or takes the name of an existing column."""

    def __init__(self, settings: datasets.PluginConditions, *, names: Collection[str]) -> None:
        self.settings = settings
        self.model: list[Any] = settings.called(settings.model)
        for entry in self.model:
            self._check(entry, names)
        self.columns: dict[str, Kind] = {entry["column"]: "float" for entry in self.model}
        if not self.columns:
            raise settings.fault("returns no condition", got="an empty model()", expected="one entry or more")
        self._compute = settings.called(settings.open)

    def _check(self, entry: Any, names: Collection[str]) -> None:
        prefix = self.settings.kind.replace("-", "_")
        keys = {"name", "column", "unit", "map"} | PARAMETERS.get(entry.get("map"), set())
        if set(entry) != keys or entry["map"] not in PARAMETERS:
            maps = ", ".join(f"{name} ({', '.join(sorted(takes))})" for name, takes in PARAMETERS.items())
            raise self.settings.fault(
                "has an invalid entry of model()", got=entry, expected=f"name, column, unit, and a map of {maps}"
            )
        if entry["column"] in names or not entry["column"].startswith(prefix):
            raise self.settings.fault(
                "has a column of another owner or without its prefix",
                got=entry["column"],
                expected=f"a unique name that starts with {prefix}",
            )

    def compute(self, known: Mapping[str, list[Any]], count: int) -> dict[str, list[float | None]]:
        """Return the columns of N tiles, None where unknown; UserError for other columns or lengths, or no numbers."""
        reply = self.settings.called(self._compute, known)
        names, lengths = set(reply), {len(values) for values in reply.values()}
        if names != set(self.columns) or lengths != {count}:
            got = ", ".join(f"{name} ({len(values)})" for name, values in reply.items())
            expected = ", ".join(f"{name} ({count})" for name in self.columns)
            raise self.settings.fault("returns other columns than it declares", got=got, expected=expected)
        table = {name: [None if value is None else float(value) for value in values] for name, values in reply.items()}
        bad = [value for values in table.values() for value in values if value is not None and not isfinite(value)]
        if bad:
            raise self.settings.fault(
                "returns an invalid number", got=bad[0], expected="finite numbers, None if unknown"
            )
        return table


class Conditions:
    """Conditions of the tiles of a dataset: columns of the table, and their maps to the model-ready file (`model`).

    `scenes` are columns of `Scenes`. There are no columns if they have only the pixel size, which all tiles share. `names`
    are the further columns.
    With `masks`, the cloud share of a tile, one of these columns, is a condition too.
    Raises UserError if a plugin violates its contract.
    """

    def __init__(
        self,
        scenes: Mapping[str, list[Any]],
        *,
        size: int,
        added: Sequence[datasets.PluginConditions],
        names: Collection[str],
        masks: bool = False,
    ) -> None:
        self._source, self._size, self._plugins = scenes, size, list[PluginColumns]()
        of_scenes = {name: scenes[name] for name in COLUMNS if name in scenes}
        days = [day_of_year(time) for time in of_scenes["sensing_time"]]
        self._scenes: dict[str, list[Any]] = of_scenes | {"day_of_year": days}
        found = {name for name, values in self._scenes.items() if any(value not in (None, "", 0.0) for value in values)}
        if any(scenes["transform"]):
            found |= {"lon", "lat"}
        self.columns = {name: kind for name, kind in COLUMNS.items() if name in found and found != {"gsd_m"}}
        self.model: list[Condition] = [CLOUD] if masks else []
        for condition in MODEL:
            if condition["column"] in self.columns:
                values = sorted({value for value in self._scenes.get(condition["column"], []) if value})
                self.model.append({**condition, "values": values} if condition["map"] == "code" else condition)
        for settings in added:
            plugin = PluginColumns(settings, names={*COLUMNS, *GROUPS, "view", *names, *self.columns})
            self._check_consistency(plugin)
            self._plugins.append(plugin)
            self.columns |= plugin.columns
            self.model += plugin.model

    def _check_consistency(self, plugin: PluginColumns) -> None:
        """Compute two tiles twice, and one of them alone, to detect inconsistent conditions."""
        rows, zeros = [0, len(self._source["scene_id"]) - 1], np.zeros(2, np.int64)
        both, repeated, single = (
            plugin.compute(self._inputs(rows[:count], zeros[:count], zeros[:count]), count) for count in (2, 2, 1)
        )
        if both != repeated or {name: values[:1] for name, values in both.items()} != single:
            raise plugin.settings.fault(
                "returns different conditions for the same tile", got=both, expected=f"{repeated}, {single}"
            )

    def compute(self, scenes: list[int], y: Ints, x: Ints) -> dict[str, list[Any]]:
        """Return the columns of tiles by scene number (N,) and first pixel (N,); None if unknown."""
        inputs = self._inputs(scenes, y, x)
        columns = {name: values for name, values in inputs.items() if name in self.columns}
        for plugin in self._plugins:
            columns |= plugin.compute(inputs, len(scenes))
        return columns

    def _inputs(self, scenes: list[int], y: Ints, x: Ints) -> dict[str, list[Any]]:
        table = {name: [self._scenes[name][scene] for scene in scenes] for name in self.columns if name in self._scenes}
        if "lon" in self.columns:
            longitudes, latitudes = self._centers(scenes, y, x)
            table |= {"lon": _none_if_nan(longitudes), "lat": _none_if_nan(latitudes)}
        names = self._source["scene_id"]
        return table | {"scene_id": [names[scene] for scene in scenes], "y": y.tolist(), "x": x.tolist()}

    def _centers(self, scenes: list[int], y: Ints, x: Ints) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        from dithc.data.grids import degrees  # imports rasterio, which images without coordinates do not need

        transforms = [self._source["transform"][scene] for scene in scenes]
        systems = [self._source["crs"][scene] for scene in scenes]
        a, b, c, d, e, f = np.array([transform or [np.nan] * 6 for transform in transforms]).T  # (N,) each
        rows, columns = y + self._size / 2, x + self._size / 2
        lonlat = np.full((2, len(scenes)), np.nan)
        for crs in {crs for crs, transform in zip(systems, transforms, strict=True) if crs and transform}:
            part = [i for i, system in enumerate(systems) if system == crs and transforms[i]]
            lonlat[:, part] = degrees((a * columns + b * rows + c)[part], (d * columns + e * rows + f)[part], crs=crs)
        return lonlat[0], lonlat[1]

    def model_input(self, columns: dict[str, list[Any]]) -> npt.NDArray[np.float32]:
        """Return the input of a model (N, K) from columns as returned by `compute`; NaN if unknown."""
        inputs = [apply_map(columns[condition["column"]], condition) for condition in self.model]
        return np.stack(inputs, axis=1).astype(np.float32)


def day_of_year(time: str | None) -> float | None:
    """Return the day of the year of an ISO time, 1.0 at the start of 1 January; None for invalid text."""
    try:
        timestamp = datetime.fromisoformat(time or "").replace(tzinfo=None)
    except ValueError:
        return None
    return 1.0 + (timestamp - datetime(timestamp.year, 1, 1)).total_seconds() / 86400.0


def _none_if_nan(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
