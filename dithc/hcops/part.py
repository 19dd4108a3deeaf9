"""What the operators of this process are a part of: images whose other tokens, or rows, are elsewhere.

A network knows neither: where `part_of` says so, attention asks who has the other keys and values, and products sum in
the order of the whole, so that a part has the bits that it has there.

Legend: N batch, t tokens of the part, D width.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
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


class part_of:  # reads as a verb at the place of use
    """In the body of a `with`, operators on streams (N, t, D) are those of a part of images of `tokens` tokens, and operators on
    conditions (N, D) are alike for any N: a row of a product has the same bits whatever the rows beside it. No gradients.

    That holds for the C kernels. Those of PyTorch and Numba choose by shapes, and promise rounding alone. Tuned products give
    way to the rule of the kernels.
    """

    def __init__(self, tokens: int, across: Across | None = None) -> None:
        self._inside = tokens, across

    def __enter__(self) -> None:
        self._outside = part.tokens, part.across
        part.tokens, part.across = self._inside

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        part.tokens, part.across = self._outside
