"""Conditions of tiles computed by plugins, each checked before use.

Legend: N tiles.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from dithc.config import datasets
from dithc.data.table import Kind

PARAMETERS = {"linear": {"centre", "scale"}, "sin": {"period"}, "cos": {"period"}, "log2": {"scale"}}
"""Parameters of each map of a number, as defined in dithc/data/tiles/conditions.py."""


class Added:
    """Conditions of one entry of `conditions`.

    Attributes:
        columns: Columns of the table, all numbers.
        model: Entries of the model-ready file, like `MODEL` in dithc/data/tiles/conditions.py.

    Args:
        settings: Settings of the plugin.
        taken: Names of existing columns.

    Raises:
        UserError: The plugin declares its conditions incorrectly.
    """

    def __init__(self, settings: datasets.InstalledConditions, *, taken: Collection[str]) -> None:
        self.settings = settings
        self.model: list[Any] = settings.called(settings.model)
        for entry in self.model:
            self._check(entry, taken)
        self.columns: dict[str, Kind] = {entry["column"]: "float" for entry in self.model}
        if not self.columns:
            raise settings.fault("returns no condition", got="an empty model()", expected="one entry or more")
        self._compute = settings.called(settings.open)

    def _check(self, entry: Any, taken: Collection[str]) -> None:
        start = self.settings.kind.replace("-", "_")
        keys = {"name", "column", "unit", "map"} | PARAMETERS.get(entry.get("map"), set())
        if set(entry) != keys or entry["map"] not in PARAMETERS:
            maps = ", ".join(f"{name} ({', '.join(sorted(takes))})" for name, takes in PARAMETERS.items())
            raise self.settings.fault(
                "has an invalid entry of model()", got=entry, expected=f"name, column, unit, and a map of {maps}"
            )
        if entry["column"] in taken or not entry["column"].startswith(start):
            raise self.settings.fault(
                "has a column of another owner or without its prefix",
                got=entry["column"],
                expected=f"a unique name that starts with {start}",
            )

    def of(self, known: Mapping[str, list[Any]], count: int) -> dict[str, list[float | None]]:
        """Return the columns of N tiles, None where unknown; UserError for other columns or lengths, or no numbers."""
        given = self.settings.called(self._compute, known)
        names, lengths = set(given), {len(values) for values in given.values()}
        if names != set(self.columns) or lengths != {count}:
            got = ", ".join(f"{name} ({len(values)})" for name, values in given.items())
            expected = ", ".join(f"{name} ({count})" for name in self.columns)
            raise self.settings.fault("returns other columns than it declares", got=got, expected=expected)
        found = {name: [None if value is None else float(value) for value in values] for name, values in given.items()}
        odd = [value for values in found.values() for value in values if value is not None and not isfinite(value)]
        if odd:
            raise self.settings.fault(
                "returns an invalid number", got=odd[0], expected="finite numbers, None if unknown"
            )
        return found
