"""Pieces of named tensors as ranks hold them, sliced along a dimension or flattened, and their assembly."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dithc.log import problem


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a tensor.

    Attributes:
        name: Name of the complete tensor.
        values: Values of this part; shape (count) if `dim` is None.
        shape: Shape of the complete tensor.
        dim: Dimension along which the tensor is sliced; None for a range of its flattened elements.
        start: Index of the first slice along `dim`, or of the first element.
    """

    name: str
    values: Tensor
    shape: tuple[int, ...]
    dim: int | None = None
    start: int = 0

    @classmethod
    def whole(cls, name: str, values: Tensor) -> "Piece":
        """Return a piece that contains the complete tensor."""
        return cls(name=name, values=values, shape=tuple(values.shape), dim=None if values.dim() == 0 else 0)

    @property
    def is_whole(self) -> bool:
        """True if the piece contains all elements."""
        return self.values.numel() == math.prod(self.shape)


def assemble(pieces: Iterable[Piece]) -> dict[str, Tensor]:
    """Assemble complete tensors by name from all of their pieces, in any order.

    Raises:
        UserError: Pieces of a tensor overlap, leave a gap, or disagree about its shape.
    """
    by_name: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    return {name: _whole(parts) for name, parts in by_name.items()}


def _whole(parts: list[Piece]) -> Tensor:
    first = parts[0]
    if len(parts) == 1 and first.is_whole:
        return first.values.reshape(first.shape)
    parts = sorted(parts, key=lambda piece: piece.start)
    flat, dim = first.dim is None, first.dim or 0
    length, at = math.prod(first.shape) if flat else first.shape[dim], 0
    for part in parts:
        if (part.shape, part.dim) != (first.shape, first.dim) or part.start != at:
            break
        at += part.values.shape[dim]
    else:
        if at == length:
            return torch.cat([part.values for part in parts], dim=dim).reshape(first.shape)
    raise problem(
        f"tensor {first.name} cannot be assembled",
        got=", ".join(f"{tuple(part.values.shape)} at {part.start} along {part.dim} of {part.shape}" for part in parts),
        expected=f"contiguous parts up to {length}",
        fix="use another checkpoint: the files of the ranks are from different checkpoints",
    )
