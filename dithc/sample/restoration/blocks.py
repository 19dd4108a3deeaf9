"""Division of a scene into blocks that are sampled separately and cross-faded.

Positions along an axis, for two blocks with cores 0..4 and 4..8, margin 2 and fade 1:

    core    0 1 2 3 | 4 5 6 7      every pixel of the scene belongs to one core
    extent  0 1 2 3 4 | 3 4 5 6 7  stored pixels: the core and half of the fade on each side
    domain  0 .. 5    | 2 .. 7     sampled pixels: the core and the margin on each side
"""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Span:
    """Positions of a block along an axis, and the weight of each stored pixel; the weights of a pixel sum to 1.

    Core and extent are in the scene. The domain may end beyond it, because its ends are multiples of the coarse pixels.
    """

    core: slice
    extent: slice
    domain: slice
    weight: npt.NDArray[np.float32]

    @classmethod
    def alone(cls, first: int, end: int, margin: int, length: int) -> Self:
        """Return the span of a block without neighbors, with margins that end within `length`."""
        core = slice(first, end)
        return cls(
            core, core, slice(max(0, first - margin), min(length, end + margin)), np.ones(end - first, np.float32)
        )


@dataclass(frozen=True)
class Block:
    """Rows and columns of a block."""

    rows: Span
    columns: Span

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the sampled pixels."""
        return self.rows.domain.stop - self.rows.domain.start, self.columns.domain.stop - self.columns.domain.start

    def stored(self) -> tuple[slice, slice]:
        """Return rows and columns of the extent within the domain."""
        starts = self.rows.domain.start, self.columns.domain.start
        rows, columns = (
            slice(span.extent.start - start, span.extent.stop - start)
            for span, start in zip((self.rows, self.columns), starts, strict=True)
        )
        return rows, columns


def blocks(shape: tuple[int, int], *, size: int, window: int, multiple: int) -> list[Block]:
    """Return the blocks of a scene (H, W) by rows, each with a core of at most about `size` pixels per side.

    The margin is one `window`. Domains are at least a window, and begin and end at a multiple of `multiple`.
    """
    rows, columns = (_spans(length, size=size, window=window, multiple=multiple) for length in shape)
    return [Block(*pair) for pair in product(rows, columns)]


def _spans(length: int, *, size: int, window: int, multiple: int) -> list[Span]:
    margin = -(-window // multiple) * multiple
    padded = -(-max(length, window) // multiple) * multiple
    count = min(-(-length // size), length // multiple or 1)
    edges = [number * length // count // multiple * multiple for number in range(count)] + [length]
    half = min(window, min(end - first for first, end in pairwise(edges))) // 2  # of the fade
    spans = []
    for first, end in pairwise(edges):
        extent = slice(max(0, first - half), min(length, end + half))
        domain = slice(max(0, first - margin), padded if end == length else min(padded, end + margin))
        positions = np.arange(extent.start, extent.stop)
        weight = np.ones(len(positions))
        if first > 0:
            weight = np.minimum(weight, (positions - (first - half) + 0.5) / (2 * half))
        if end < length:
            weight = np.minimum(weight, (end + half - positions - 0.5) / (2 * half))
        spans.append(Span(slice(first, end), extent, domain, weight.astype(np.float32)))
    return spans
