"""Rows of parquet tables."""

from pathlib import Path
from typing import Any

from dithc.data.parquet import read_columns


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table as mappings by column."""
    columns = read_columns(path)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
