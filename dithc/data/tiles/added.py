"""Conditions of tiles that an installed package computes, each looked at before it is believed.

Legend: N tiles.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from dithc.config import datasets
from dithc.data.table import Kind

PARAMETERS = {"linear": {"centre", "scale"}, "sin": {"period"}, "cos": {"period"}, "log2": {"scale"}}
"""What each map of a number takes; dithc/data/tiles/conditions.py says how it is made."""


class Added:
    """The conditions of one entry of `conditions`.

    Attributes:
        columns: of the table, all numbers.
        model: of the model-ready file, entries as those of `MODEL` in dithc/data/tiles/conditions.py.

    Args:
        settings: of the package.
        taken: names of columns that are there already.

    Raises:
        UserError: it does not say what it gives.
    """

    def __init__(self, settings: datasets.InstalledConditions, *, taken: Collection[str]) -> None:
        self.settings = settings
        self.model: list[Any] = settings.called(settings.model)
        for entry in self.model:
            self._check(entry, taken)
        self.columns: dict[str, Kind] = {entry["column"]: "float" for entry in self.model}
        if not self.columns:
            raise settings.fault("gives no condition", got="an empty model()", expected="one entry or more")
        self._compute = settings.called(settings.open)

    def _check(self, entry: Any, taken: Collection[str]) -> None:
        start = self.settings.kind.replace("-", "_")
        keys = {"name", "column", "unit", "map"} | PARAMETERS.get(entry.get("map"), set())
        if set(entry) != keys or entry["map"] not in PARAMETERS:
            maps = ", ".join(f"{name} ({', '.join(sorted(takes))})" for name, takes in PARAMETERS.items())
            raise self.settings.fault(
                "has an entry of model() that is none", got=entry, expected=f"name, column, unit, and a map of {maps}"
            )
        if entry["column"] in taken or not entry["column"].startswith(start):
            raise self.settings.fault(
                "names a column that is not its own",
                got=entry["column"],
                expected=f"one that begins with {start}, and that nobody else has",
            )

    def of(self, known: Mapping[str, list[Any]], count: int) -> dict[str, list[float | None]]:
        """Return the columns of N tiles, None where unknown; UserError for other columns or lengths, or no numbers."""
        given = self.settings.called(self._compute, known)
        names, lengths = set(given), {len(values) for values in given.values()}
        if names != set(self.columns) or lengths != {count}:
            got = ", ".join(f"{name} ({len(values)})" for name, values in given.items())
            expected = ", ".join(f"{name} ({count})" for name in self.columns)
            raise self.settings.fault("gives other columns than it says", got=got, expected=expected)
        found = {name: [None if value is None else float(value) for value in values] for name, values in given.items()}
        odd = [value for values in found.values() for value in values if value is not None and not isfinite(value)]
        if odd:
            raise self.settings.fault(
                "gives what is no number", got=odd[0], expected="finite numbers, None where unknown"
            )
        return found
