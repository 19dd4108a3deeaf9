"""Parquet tables, written row by row and read by column or cell: the only use of pyarrow."""

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
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
CACHED_GROUPS = 2
"""Row groups of shards kept in memory. Cells are read in order, so a group is finished when the next begins."""


class RowGroup(NamedTuple):
    """A row group of a parquet file: its rows, and the bytes of one of its columns in memory."""

    rows: int
    num_bytes: int


class ParquetInfo(NamedTuple):
    """Metadata of a user's parquet file."""

    kinds: dict[str, str]  # of columns: `int`, `bytes` (also of a struct with `bytes`), or pyarrow's name
    groups: list[RowGroup]
    names: dict[str, list[str]]  # class names per column, from the metadata of Hugging Face


class TableWriter:
    """Writer of one parquet file in row groups; all columns accept None."""

    def __init__(self, path: Path, *, columns: dict[str, Kind]) -> None:
        self.columns = columns
        self._schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Append one row. Missing columns are None; unknown columns are a caller error."""
        assert row.keys() <= self.columns.keys(), f"unknown columns {row.keys() - self.columns.keys()}"
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        columns = [_column([row.get(name) for row in self._rows], kind) for name, kind in self.columns.items()]
        self._writer.write_table(pyarrow.Table.from_arrays(columns, schema=self._schema))
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


def _column(values: Sequence[Any], kind: Kind) -> Any:
    """Build a column from buffers: `pyarrow.array` imports pandas, which takes longer than a table of a dataset."""
    present = np.array([value is not None for value in values], bool)
    validity = pyarrow.py_buffer(np.packbits(present, bitorder="little"))
    if kind in ("int", "float"):
        numbers = array("q" if kind == "int" else "d", (0 if value is None else value for value in values))
        return pyarrow.Array.from_buffers(TYPES[kind], len(values), [validity, pyarrow.py_buffer(numbers)])
    parts: Iterable[Any] = [() if value is None else value.encode() if kind == "text" else value for value in values]
    offsets = pyarrow.py_buffer(array("i", accumulate(map(len, parts), initial=0)))
    if kind == "text":
        content = pyarrow.py_buffer(bytes(chain.from_iterable(parts)))
        return pyarrow.Array.from_buffers(TYPES[kind], len(values), [validity, offsets, content])
    children = [_column(list(chain.from_iterable(parts)), "float")]
    return pyarrow.Array.from_buffers(TYPES[kind], len(values), [validity, offsets], children=children)


def read_columns(path: Path, *names: str, most: int | None = None) -> dict[str, list[Any]]:
    """Return existing columns of a table (default: all) as lists in row order; OSError if missing or incomplete.

    A table longer than about `most` rows is sampled by evenly spaced row groups.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = file.num_row_groups
            if most is not None:
                groups = min(groups, max(1, most * groups // max(1, file.metadata.num_rows)))
            row_groups = [i * file.num_row_groups // groups for i in range(groups)]
            columns = [name for name in file.schema_arrow.names if not names or name in names]
            table = file.read_row_groups(row_groups, columns=columns)
    except pyarrow.ArrowInvalid as error:
        raise OSError(f"{path} is not a complete parquet file: {error}") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def read_shard(path: Path, column: str) -> ParquetInfo:
    """Return metadata of a parquet file and sizes of one column, if it exists; raise OSError for an incomplete file."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            groups = []
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                parts = (group.column(part) for part in range(group.num_columns))
                of_column = [part for part in parts if part.path_in_schema.split(".")[0] == column]
                groups.append(RowGroup(group.num_rows, sum(part.total_uncompressed_size for part in of_column)))
    except pyarrow.ArrowException as error:
        raise OSError(f"it is not a complete parquet file: {error}") from error
    kinds = {field.name: _column_kind(field.type) for field in schema}
    return ParquetInfo(kinds, groups, _class_names((schema.metadata or {}).get(b"huggingface", b"{}")))


def read_cell(path: Path, column: str, *, group: int, row: int) -> bytes | None:
    """Return the bytes of one cell, or None, after verifying page checksums if present; OSError if unreadable."""
    value = _read_group(path, column, group)[row].as_py()
    content: bytes | None = value["bytes"] if isinstance(value, dict) else value
    return content


@lru_cache(maxsize=CACHED_GROUPS)
def _read_group(path: Path, column: str, group: int) -> Any:
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read_row_group(group, columns=[column], use_threads=False).column(column)
    except (pyarrow.ArrowException, OSError) as error:
        raise OSError(f"row group {group} cannot be read: {error}") from error


def _column_kind(dtype: Any) -> str:
    types = pyarrow.types
    if types.is_struct(dtype) and dtype.get_field_index("bytes") >= 0:
        dtype = dtype.field("bytes").type
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return "bytes"
    return "int" if types.is_integer(dtype) else str(dtype)


def _class_names(metadata: bytes) -> dict[str, list[str]]:
    try:
        features = json.loads(metadata)["info"]["features"]
        classes = {key: feature for key, feature in features.items() if feature.get("_type") == "ClassLabel"}
        return {key: [str(name) for name in feature["names"]] for key, feature in classes.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
