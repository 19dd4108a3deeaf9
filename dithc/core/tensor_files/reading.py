"""Reading of complete tensors by name from one file or several files of pieces, and of weights of other programs."""

import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dithc.core.integrity import parse_json
from dithc.core.logging import UserError
from dithc.core.tensor_files.safetensors_file import PIECES_KEY, TensorPiece, assemble
from dithc.core.weights import content_of, files_of, unreadable, unwrapped

# Exceptions of damaged files and of wrong descriptions of pieces.
DAMAGE = (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError)


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a safetensors file, or of its numbered shards, mapped into memory.

    `path` is a file such as `model.safetensors`, or the name whose shards `model-00001-of-00002.safetensors` exist. A
    tensor that is complete in one file is a view of that file. A tensor in pieces is assembled at each access. UserError
    if a file is missing, truncated or of another format, or pieces do not form complete tensors.
    """
    try:
        return _Tensors(files_of(path))
    except DAMAGE as error:
        raise _unreadable(path, error) from error


def read_external(path: Path) -> tuple[Any, dict[str, str]]:
    """Read weights that another program wrote; the bytes of a file decide its format, not its name.

    `path` is a file of safetensors or torch.save, or shards of safetensors in any form that `weights.files_of` accepts.
    Files are mapped into memory if their format allows it. Names have no wrapper prefixes (see `weights.unwrapped`).

    Returns:
        Names to tensors, or the object that torch.save wrote: tensors, containers and an argparse.Namespace only. Then
        the metadata of the first safetensors file.

    Raises:
        UserError: A file is missing or does not contain weights; the message names its content.
    """
    try:
        files = files_of(path)
        contents = {file: content_of(file) for file in files}
        other = [file for file, content in contents.items() if content.format != "safetensors" or content.fix]
        if not other:
            tensors = _Tensors(files)
            tensors.locations = dict(unwrapped(tensors.locations, source=path))
            return tensors, tensors.metadata
        if len(files) == 1 and contents[files[0]].format == "torch":
            return _unpickle(files[0]), {}
    except DAMAGE as error:
        raise _unreadable(path, error) from None
    raise _unreadable(other[0], "")


def _unpickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they recommend other ways of loading
            is_zip = path.open("rb").read(2) == b"PK"
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # torch.load raises half a dozen types for a damaged file
        raise _unreadable(path, error) from None
    if not isinstance(content, Mapping):
        return content
    return {
        key: unwrapped(value, source=path) if isinstance(value, Mapping) else value
        for key, value in unwrapped(content, source=path).items()
    }


def _unreadable(path: Path, error: object) -> UserError:
    if isinstance(error, UserError):
        return error
    expected = "tensors: a complete safetensors file with all of its shards, or a state dictionary saved by torch.save"
    return unreadable(f"weights file {path} cannot be read", path, expected=expected, error=error)


class _Tensors(Mapping[str, Tensor]):
    """Tensors of files, each assembled on access."""

    def __init__(self, files: list[Path]) -> None:
        self._path = files[0]
        self.locations: dict[str, list[tuple[Any, str, dict[str, Any]]]] = {}
        self.metadata: dict[str, str] = {}
        for file in files:
            handle: Any = safe_open(file, framework="pt")
            metadata = handle.metadata() or {}
            self.metadata = self.metadata or dict(metadata)
            partial: dict[str, dict[str, Any]] = parse_json(metadata.get(PIECES_KEY, "{}"))
            for key in handle.keys():  # noqa: SIM118  it is not a mapping
                piece = partial.get(key, {})
                name = piece.get("name", key)
                if not isinstance(name, str):
                    raise TypeError(f"the name of a piece is {name!r}")
                self.locations.setdefault(name, []).append((handle, key, piece))

    def __getitem__(self, name: str) -> Tensor:
        pieces, entries = [], self.locations[name]
        try:
            for handle, key, location in entries:
                values: Tensor = handle.get_tensor(key)
                piece = TensorPiece.whole(name, values)
                if location:
                    shape = tuple(location["shape"])
                    piece = TensorPiece(
                        name=name, values=values, shape=shape, dim=location["dim"], start=location.get("start", 0)
                    )
                pieces.append(piece)
            return assemble(pieces)[name]
        except DAMAGE as error:
            raise _unreadable(self._path, error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.locations))

    def __len__(self) -> int:
        return len(self.locations)
