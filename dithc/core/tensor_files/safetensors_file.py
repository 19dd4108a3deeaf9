"""Pieces of named tensors, the content of a safetensors file, and its writing in hashed blocks.

Format: 8 bytes with the length of the header, the header (JSON: type, shape and byte range of each tensor, and
metadata), then the bytes of all tensors without gaps.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.core.tensor_files.writing import DirectFileWriter, whole_blocks

PIECES_KEY = "pieces"
ALIGNMENT = 8  # of the first tensor's bytes, required by the format
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}  # type names in the format


@dataclass(frozen=True, kw_only=True)
class TensorPiece:
    """A part of a tensor."""

    name: str  # of the complete tensor
    values: Tensor  # shape (count) if `dim` is None
    shape: tuple[int, ...]  # of the complete tensor
    dim: int | None = None  # along which the tensor is sliced; None for a range of its flattened elements
    start: int = 0  # index of the first slice along `dim`, or of the first element

    @classmethod
    def whole(cls, name: str, values: Tensor) -> "TensorPiece":
        return cls(name=name, values=values, shape=tuple(values.shape), dim=None if values.dim() == 0 else 0)

    @property
    def is_whole(self) -> bool:
        return self.values.numel() == math.prod(self.shape)


def assemble(pieces: Iterable[TensorPiece]) -> dict[str, Tensor]:
    """Assemble complete tensors by name from pieces in any order; UserError if these overlap, leave a gap or disagree."""
    by_name: dict[str, list[TensorPiece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    return {name: _assemble_tensor(parts) for name, parts in by_name.items()}


def _assemble_tensor(parts: list[TensorPiece]) -> Tensor:
    first = parts[0]
    if len(parts) == 1 and first.is_whole:
        return first.values.reshape(first.shape)
    parts = sorted(parts, key=lambda piece: piece.start)
    flat, dim = first.dim is None, first.dim or 0
    length, position = math.prod(first.shape) if flat else first.shape[dim], 0
    for part in parts:
        if (part.shape, part.dim) != (first.shape, first.dim) or part.start != position:
            break
        position += part.values.shape[dim]
    else:
        if position == length:
            return torch.cat([part.values for part in parts], dim=dim).reshape(first.shape)
    raise user_error(
        f"tensor {first.name} cannot be assembled",
        got=", ".join(f"{tuple(part.values.shape)} at {part.start} along {part.dim} of {part.shape}" for part in parts),
        expected=f"contiguous parts up to {length}",
        fix="use another checkpoint: the files of the ranks are from different checkpoints",
    )


@dataclass(frozen=True)
class TensorFile:
    """Content of one file."""

    TYPES: ClassVar[Mapping[torch.dtype, str]] = TYPES  # supported tensor types, with their names in the format
    pieces: tuple[TensorPiece, ...]  # contiguous, in file order
    metadata: Mapping[str, str] = field(default_factory=dict)  # further metadata by name

    @classmethod
    def of(cls, pieces: Iterable[TensorPiece], *, metadata: Mapping[str, str] | None = None) -> "TensorFile":
        """Sort pieces: wide types first, which aligns each piece to its width, then by name and position."""
        parts = [piece for piece in pieces if piece.is_whole or piece.values.numel()]
        parts.sort(key=lambda piece: (-piece.values.element_size(), piece.name, piece.start))
        return cls(tuple(parts), metadata or {})

    @property
    def num_bytes(self) -> int:
        return sum(piece.values.nbytes for piece in self.pieces)

    def head(self) -> bytes:
        tensors: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        offset = 0
        for piece in self.pieces:
            key = piece.name if piece.is_whole else f"{piece.name}@{piece.start}"
            shape = piece.shape if piece.is_whole else tuple(piece.values.shape)
            stop = offset + piece.values.nbytes
            tensors[key] = {"dtype": TYPES[piece.values.dtype], "shape": list(shape), "data_offsets": [offset, stop]}
            offset = stop
            if not piece.is_whole:
                parts[key] = {"name": piece.name, "shape": list(piece.shape), "dim": piece.dim, "start": piece.start}
        meta = {"format": "pt", **self.metadata}
        meta |= {PIECES_KEY: json.dumps(parts, separators=(",", ":"))} if parts else {}
        text = json.dumps({"__metadata__": meta, **tensors}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def parts(self) -> Iterator[memoryview]:
        """Yield the bytes of the file in order: header, then tensors."""
        yield memoryview(self.head())
        for piece in self.pieces:
            yield piece.values.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_file(path: Path, content: TensorFile, *, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Write a file and flush it to disk without reading it back; return its entry: path (name only), sha256, bytes.

    `check` is called before every block; its exception aborts the writing. Raises OSError if the disk is full.
    """
    digest, size = hashlib.sha256(), 0
    with DirectFileWriter(path) as file:
        for block in whole_blocks(content.parts()):
            check()
            digest.update(block)
            file.write(block)
            size += len(block)
        file.flush()
    return {"path": path.name, "sha256": digest.hexdigest(), "bytes": size}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a file of complete tensors, with `metadata` in its header; OSError if the disk is full or not writable."""
    pieces = (TensorPiece.whole(name, value) for name, value in tensors.items())
    write_file(path, TensorFile.of(pieces, metadata=metadata))


def shard_name(name: str, number: int, count: int) -> str:
    """Return the name of shard `number` (from 0) of `count`; a single file keeps `name`."""
    path = Path(name)
    return name if count == 1 else f"{path.stem}-{number + 1:05d}-of-{count:05d}{path.suffix}"
