"""Numbers printed in the paper (arXiv:2601.01500), read from `reference.yaml` in this package."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dithc.core.measurements import ABSENT, Table

# Rows of figure 9 by the stages of `dithc bench stepwise`.
PUBLISHED_ROWS = {
    "gemm": "GEMM",
    "mpi": "+ asynchronous MPI",
    "operators": "+ AI operators",
    "automem": "+ AutoMem",
    "tuned": "+ tuning",
}


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
                cell = cells[self.columns.index(column)]
                return float(cell) if isinstance(cell, int | float) else None
        return None

    @property
    def table(self) -> Table:
        rows = [[ABSENT if value is None else str(value) for value in row] for row in self.rows]
        return Table(title=self.title, head=self.columns, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Numbers printed in the paper: tables by name, and curves of figures 10 and 11 as in `dithc bench scaling --json`."""

    tables: dict[str, Printed] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)


@cache
def read_reference() -> Reference:
    content = yaml.safe_load(Path(__file__).with_name("reference.yaml").read_text(encoding="utf-8"))
    tables = {name: Printed(**table) for name, table in content["tables"].items()}
    return Reference(tables=tables, scaling=content["scaling"])


def published_value(target: str, row: str, column: str) -> float | None:
    """Return a number printed in a table or figure such as `table2` or `fig9`; None if the paper prints none.

    `row` is the first column, or the first two joined by a space if the first one is ambiguous: `112 XL/2`. In figure 9 it may
    also be a stage of `dithc bench stepwise`.
    """
    tables = read_reference().tables
    table = tables.get(target) or tables.get(target.replace("fig", "figure", 1))
    return table.number(PUBLISHED_ROWS.get(row, row), column) if table else None
