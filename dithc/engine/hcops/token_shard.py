"""Partition of images across processes: the state that operators read if tokens or rows are elsewhere.

Within `part_of`, attention obtains the missing keys and values through `ShardedAttention`, and products sum in the order of the
complete image, so that a part has the same bits as in the complete image.

Legend: N batch, t tokens of the part, D width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor


class ShardedAttention(Protocol):
    """Attention of the tokens of this process over the tokens of all processes.

    Recorded kernels contain the addresses of memory slots. They must run at the `turn` at which they were recorded, and
    the caller then sets it to the value after the recording.
    """

    turn: tuple[int, int]

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens per process among the processes that share an image."""

    def begin(self) -> None:
        """Reset the slot for a pass of the network. All processes must have finished the previous pass."""

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        """Return the mixed values (N, t, D) of qkv (N, t, 3D), in its type."""

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield (N, F) in `dtype` for weights (F, D) and biases (F) of x (N, D), equal on all processes."""

    def lost_rank(self) -> str | None:
        """Return the process that did not arrive in time, or None."""


class TokenShard:
    """Partition that the operators of this process use; `tokens` of a complete image are 0 without a split."""

    tokens: int = 0
    across: ShardedAttention | None = None


current_shard = TokenShard()


@contextmanager
def part_of(tokens: int, across: ShardedAttention | None = None) -> Iterator[None]:
    """Treat streams (N, t, D) within a `with` block as parts of images of `tokens` tokens. No gradients.

    A row of a product of conditions (N, D) then has the same bits for any N. This holds for the C kernels, which use
    their own rule instead of tuned blockings. PyTorch and Numba choose algorithms by shape.
    """
    previous = current_shard.tokens, current_shard.across
    current_shard.tokens, current_shard.across = tokens, across
    try:
        yield
    finally:
        current_shard.tokens, current_shard.across = previous
