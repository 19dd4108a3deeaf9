"""The paper's printed numbers, read from `config/paper/reference.yaml`, to stand beside ours."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dithc.log import problem
from dithc.report.engine.scaling_curves import ScalingCurve, curves_of
from dithc.sealed import plain


@dataclass(frozen=True, kw_only=True)
class Table:
    """A printed table; None is out of memory."""

    title: str
    columns: list[str]
    rows: list[list[str | float | None]]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Numbers that the paper prints.

    Attributes:
        tables: tables by name, such as `table1`.
        table1_row: row of table 1 by source kind of a data set.
        loss: losses of the authors' logs: `first_step` and `steps_6_to_10` by model, `later` by model and step.
        scaling: curves of figures 10 and 11 that text and logs give.
    """

    source: str = ""
    tables: dict[str, Table] = field(default_factory=dict)
    table1_row: dict[str, str] = field(default_factory=dict)
    loss: dict[str, dict[str, Any]] = field(default_factory=dict)
    scaling: list[ScalingCurve] = field(default_factory=list)

    def fid_of(self, kind: str) -> dict[str, float]:
        """Return FID of table 1 by column for a source kind; empty if the paper has none."""
        table, row_name = self.tables.get("table1"), self.table1_row.get(kind)
        if table is None or row_name is None:
            return {}
        for row in table.rows:
            if row[0] == row_name:
                pairs = zip(table.columns[1:], row[1:], strict=True)
                return {column: float(value) for column, value in pairs if value is not None}
        return {}


def read_reference(path: Path | None) -> Reference:
    """Read the reference file; None gives an empty reference.

    Raises:
        UserError: the file is missing or not of the form described in its head.
    """
    if path is None:
        return Reference()
    try:
        content = yaml.safe_load(plain(path).read_text(encoding="utf-8"))
        tables = {name: Table(**table) for name, table in content["tables"].items()}
        for name, table in tables.items():
            if any(len(row) != len(table.columns) for row in table.rows):
                raise ValueError(f"{name} has rows of other length than its columns")
        rest = {key: content[key] for key in ("source", "table1_row", "loss")}
        return Reference(tables=tables, scaling=curves_of(content["scaling"], origin=str(path)), **rest)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise problem(
            f"the paper's numbers cannot be read from {path}",
            got=f"{type(error).__name__}: {error}",
            expected="the form of config/paper/reference.yaml",
            fix="restore that file, or pass another with --reference",
        ) from error
