"""State of operators on rows of images whose bits must not depend on the number of rows.

Legend: N batch, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class TokenShard:
    """Tokens of an image within `part_of`; 0 outside."""

    tokens: int = 0


current_shard = TokenShard()


@contextmanager
def part_of(tokens: int) -> Iterator[None]:
    """Compute streams of images of `tokens` tokens within a `with` block. No gradients.

    A row of a product of conditions (N, D) then has the same bits for any N. This holds for the C kernels, which use
    their own rule instead of tuned blockings. PyTorch and Numba choose algorithms by shape.
    """
    previous, current_shard.tokens = current_shard.tokens, tokens
    try:
        yield
    finally:
        current_shard.tokens = previous
