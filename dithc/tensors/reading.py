"""Whole tensors by name, out of one file or of several that hold pieces, read when they are asked for."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dithc.log import UserError, problem
from dithc.sealed import parse
from dithc.tensors.files import PIECES_KEY, numbered
from dithc.tensors.pieces import Piece, assemble

MOST_SHOWN = 400  # letters of what a library says
# How a file shows that it is not whole, or not what it says of its pieces.
DAMAGE = (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError)
NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})$")


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a safetensors file, or of the numbered files beside which it would stand.

    The files are mapped into memory. A tensor that is whole in one of them is a view of that file; one in pieces is put
    together, again each time that it is asked for.

    Args:
        path: such as `model.safetensors`; where there is none, `model-00001-of-00002.safetensors` and so on are read.

    Raises:
        UserError: a file is missing, cut short or of another format, or pieces do not make whole tensors.
    """
    try:
        return _Tensors(files_of(path))
    except DAMAGE as error:
        raise _unreadable(path, error) from error


def read_metadata(path: Path) -> dict[str, str]:
    """What the metadata of a safetensors file says, or that of the first of its numbered parts.

    Raises:
        UserError: the file is missing, cut short or of another format.
    """
    try:
        with safe_open(files_of(path)[0], framework="pt") as file:
            return dict(file.metadata() or {})
    except DAMAGE as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    return problem(
        f"{path} cannot be read",
        got=" ".join(str(error).split())[:MOST_SHOWN] or type(error).__name__,
        expected="a complete safetensors file, or all of its numbered parts",
        remedy="copy it again, or choose another",
    )


def files_of(path: Path) -> list[Path]:
    """The file, or the numbered files that stand for it, all of them.

    Raises:
        FileNotFoundError: there is neither, or a number is missing.
    """
    if path.is_file():
        return [path]
    if path.exists():
        raise OSError(f"{path} is no plain file")  # a pipe or a device would be waited for
    counts = {
        int(match[2])
        for beside in path.parent.glob(f"{path.stem}-*{path.suffix}")
        if (match := NUMBERED.search(beside.stem)) and match.start() == len(path.stem)
    }
    if len(counts) != 1:
        found = f"parts of {sorted(counts)} files" if counts else "no such file"
        raise FileNotFoundError(f"{path}: {found}")
    count = counts.pop()
    files = [path.with_name(numbered(path.name, number, count)) for number in range(count)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{', '.join(missing)} of {count} files is missing")
    return files


class _Tensors(Mapping[str, Tensor]):
    """The tensors of files, each put together when it is asked for."""

    def __init__(self, files: list[Path]) -> None:
        self._path = files[0]
        self._where: dict[str, list[tuple[Any, str, dict[str, Any]]]] = {}
        for file in files:
            handle: Any = safe_open(file, framework="pt")
            cut: dict[str, dict[str, Any]] = parse((handle.metadata() or {}).get(PIECES_KEY, "{}"))
            for key in handle.keys():  # noqa: SIM118  it is no mapping
                piece = cut.get(key, {})
                self._where.setdefault(piece.get("name", key), []).append((handle, key, piece))

    def __getitem__(self, name: str) -> Tensor:
        found = self._where[name]
        try:
            return self._assembled(name, found)
        except DAMAGE as error:
            raise _unreadable(self._path, error) from error

    def _assembled(self, name: str, found: list[tuple[Any, str, dict[str, Any]]]) -> Tensor:
        pieces = []
        for handle, key, piece in found:
            values: Tensor = handle.get_tensor(key)
            shape = tuple(piece["shape"]) if piece else tuple(values.shape)
            dim = piece["dim"] if piece else (0 if shape else None)
            pieces.append(Piece(name=name, values=values, shape=shape, dim=dim, start=piece.get("start", 0)))
        return assemble(pieces)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._where))

    def __len__(self) -> int:
        return len(self._where)
