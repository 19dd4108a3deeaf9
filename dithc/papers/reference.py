"""Numbers printed in the paper, read from `config/paper/reference.yaml`."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dithc.log import problem
from dithc.sealed import plain
from dithc.summaries import ABSENT, Table

REFERENCE = Path("config/paper/reference.yaml")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A printed table; None means out of memory."""

    title: str
    columns: list[str]
    rows: list[list[str | float | None]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.title!r} has a row of another length than its columns")

    def number(self, row: str, column: str) -> float | None:
        """Return a number; None if the table has none.

        `row` is the first cell of the row, or its first two cells joined by a space if the first one is ambiguous.
        """
        if column not in self.columns:
            return None
        for cells in self.rows:
            if row in (str(cells[0]), " ".join(map(str, cells[:2]))):
                found = cells[self.columns.index(column)]
                return float(found) if isinstance(found, int | float) else None
        return None

    @property
    def table(self) -> Table:
        """The table as texts."""
        rows = [[ABSENT if value is None else str(value) for value in row] for row in self.rows]
        return Table(title=self.title, head=self.columns, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Numbers printed in the paper: tables by name, and curves of figures 10 and 11 as in `dithc bench scaling --json`."""

    source: str = ""
    tables: dict[str, Printed] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)


@cache
def read_reference(path: Path | None) -> Reference:
    """Read the reference file, or raise UserError; return an empty reference for None."""
    if path is None:
        return Reference()
    try:
        content = yaml.safe_load(plain(path).read_text(encoding="utf-8"))
        tables = {name: Printed(**table) for name, table in content["tables"].items()}
        return Reference(source=content["source"], tables=tables, scaling=content["scaling"])
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise problem(
            f"the paper's numbers cannot be read from {path}",
            got=f"{type(error).__name__}: {error}",
            expected="the form of config/paper/reference.yaml",
            fix="restore that file and run from the folder that has `config`, or pass another file with --reference",
        ) from error


def published(target: str, row: str, column: str, *, path: Path = REFERENCE) -> float | None:
    """Return a number printed in a table or figure such as `table2` or `fig9`; None if the paper prints none.

    `row` is the first column, or the first two joined by a space if the first one is ambiguous: `112 XL/2`.
    """
    tables = read_reference(path).tables
    table = tables.get(target) or tables.get(target.replace("fig", "figure", 1))
    return table.number(row, column) if table else None
