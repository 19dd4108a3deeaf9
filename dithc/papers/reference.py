"""Numbers that the paper prints, found by target, row and column in `config/paper/reference.yaml`."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dithc.log import problem
from dithc.sealed import plain

REFERENCE = Path("config/paper/reference.yaml")


def published(target: str, row: str, column: str, *, path: Path = REFERENCE) -> float | None:
    """Return a number of a printed table or figure such as `table2`; None where the paper prints none (or "-").

    `row` is the first column, or the first two joined by a space where one is ambiguous: `112 XL/2`.

    Raises:
        UserError: the file is unreadable.
    """
    tables = _tables(path)
    table = tables.get(target) or tables.get(target.replace("fig", "figure", 1))
    if table is None or column not in table["columns"]:
        return None
    place = table["columns"].index(column)
    for values in table["rows"]:
        if row in (str(values[0]), " ".join(str(value) for value in values[:2])):
            found = values[place]
            return float(found) if isinstance(found, int | float) else None
    return None


@cache
def _tables(path: Path) -> dict[str, Any]:
    try:
        tables: dict[str, Any] = yaml.safe_load(plain(path).read_text(encoding="utf-8"))["tables"]
        for name, table in tables.items():
            if any(len(row) != len(table["columns"]) for row in table["rows"]):
                raise ValueError(f"{name} has rows of other length than its columns")
        return tables
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise problem(
            f"the paper's numbers cannot be read from {path}",
            got=f"{type(error).__name__}: {error}",
            expected="the form of config/paper/reference.yaml",
            fix="restore that file; the workflow is started from the folder that has `config`",
        ) from error
