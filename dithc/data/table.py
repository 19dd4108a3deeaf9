"""The one place pyarrow enters: tables of rows written to parquet as they come, and read back by column."""

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow
import pyarrow.parquet

Kind = Literal["text", "int", "float", "floats"]

ROWS_PER_GROUP = 8192
TYPES: dict[Kind, Any] = {
    "text": pyarrow.string(),
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "floats": pyarrow.list_(pyarrow.float64()),
}


class TableWriter:
    """Writes rows to one parquet file in groups, so that a table of millions of rows never stands in memory.

    Args:
        path: file to write; the caller chooses a temporary folder if it must appear atomically.
        columns: kind of each column by name; a value may be None in any of them.
    """

    def __init__(self, path: Path, *, columns: dict[str, Kind]) -> None:
        self.columns = columns
        self._schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Appends one row; columns not given are None, an unknown column is a mistake of the caller."""
        assert row.keys() <= self.columns.keys(), f"unknown columns {row.keys() - self.columns.keys()}"
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._write_group()
            self._writer.close()
            return
        with suppress(OSError):  # a second error (the disk is full) must not hide the first
            self._writer.close()


def column_names(path: Path) -> list[str]:
    """Names of the columns of a table.

    Raises:
        OSError: the file is missing or no whole parquet file.
    """
    try:
        return list(pyarrow.parquet.read_schema(path).names)
    except pyarrow.ArrowInvalid as error:
        raise OSError(f"{path} is no whole parquet file: {error}") from error


def read_columns(path: Path, *names: str, most: int | None = None) -> dict[str, list[Any]]:
    """The named columns of a table (all if none is named), each as a list in row order.

    Args:
        path: of the table.
        names: those that it lacks are left out where `most` is given, and an error else.
        most: rows, about; of a longer table, groups of rows taken evenly.

    Raises:
        OSError: the file is missing or no whole parquet file.
    """
    try:
        if most is None:
            table = pyarrow.parquet.read_table(path, columns=list(names) or None)
        else:
            with pyarrow.parquet.ParquetFile(path) as file:
                groups = min(file.num_row_groups, max(1, most * file.num_row_groups // max(1, file.metadata.num_rows)))
                chosen = [i * file.num_row_groups // groups for i in range(groups)]
                table = file.read_row_groups(
                    chosen, columns=[name for name in file.schema_arrow.names if name in names]
                )
    except pyarrow.ArrowInvalid as error:
        raise OSError(f"{path} is no whole parquet file: {error}") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a table as mappings."""
    columns = read_columns(path)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
