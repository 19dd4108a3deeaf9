"""What the operators of this process are a part of: images whose other tokens, or rows, are elsewhere.

A network knows neither: where `part_of` says so, attention asks who has the other keys and values, and products sum in
the order of the whole, so that a part has the bits that it has there.

Legend: N batch, t tokens of the part, D width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor


class Across(Protocol):
    """Attention of the tokens of this process over those of all.

    Attributes:
        turn: which of its memories come next. What is recorded holds their addresses: it is run again at the turn at which it was
            recorded alone, and the turn is set to what it was behind that.
    """

    turn: tuple[int, int]

    @property
    def in_sequence(self) -> bool:
        """Whether `attention` calls kernels alone, so that it may be recorded with those of a block."""

    @property
    def most_tokens(self) -> int:
        """Of all processes that share an image, those of the one that has most."""

    def begin(self) -> None:
        """A pass of the network begins, at the first turn; everybody has ended the one before. A pass may be several programs."""

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        """The mixed values (N, t, D) of qkv (N, t, 3D), in its type."""

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """x (N, D), which all have, through weights (F, D) and biases (F): (N, F) each in `dtype`; of what is `in_sequence`."""

    def absent(self) -> str | None:
        """The process that was waited for in vain; None where all came."""


class Part:
    """What the operators of this process are a part of.

    Attributes:
        tokens: of a whole image; 0 outside, where every call is a whole by itself.
        across: who has the others; None where all tokens are here.
    """

    tokens: int = 0
    across: Across | None = None


part = Part()


@contextmanager
def part_of(tokens: int, across: Across | None = None) -> Iterator[None]:
    """Treat streams (N, t, D) within a `with` block as parts of images of `tokens` tokens. No gradients.

    A row of a product of conditions (N, D) then has the same bits for any N. This guarantee holds for the C kernels; PyTorch and
    Numba choose by shapes and guarantee rounding only. Tuned products use the kernels' rule.
    """
    outside = part.tokens, part.across
    part.tokens, part.across = tokens, across
    try:
        yield
    finally:
        part.tokens, part.across = outside
