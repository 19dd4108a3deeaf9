"""Copies of train tiles: images much nearer to one train tile than to any other (Yoon et al. 2023), in any orientation.

An image of the ground is equivalent in 8 orientations, but its features are not. The distance of an image to a train
tile is therefore the least distance of its 8 orientations. Held-out tiles are measured in the same way.

In float64. Legend: n queries, m train tiles, d features.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import FloatArray

COPY_RATIO = 1 / 3  # of the distances to the nearest and second nearest train tile, below which an image is a copy
MAX_QUERIES = 2048  # of a set, evenly spaced: the error of a share is then below 0.011
BLOCK_ROWS = 1024  # train tiles per block, so that their distances need tens of MB
Blocks = Sequence[NDArray[np.floating]]
Rows = NDArray[np.int64]


def evenly(rows: Rows) -> Rows:
    """Return at most MAX_QUERIES rows, evenly spaced."""
    count = min(len(rows), MAX_QUERIES)
    queries: Rows = rows[np.arange(count) * len(rows) // max(count, 1)]
    return queries


def take(blocks: Blocks, rows: Rows) -> NDArray[np.floating]:
    """Return ascending rows of consecutive blocks."""
    starts = np.cumsum([0, *map(len, blocks)])
    edges = np.searchsorted(rows, starts)
    parts = [
        block[rows[first:last] - start]
        for block, start, first, last in zip(blocks, starts, edges[:-1], edges[1:], strict=False)
    ]
    return np.concatenate(parts)


def copied_share(views: Blocks, real: Blocks, is_train: NDArray[np.bool_]) -> float:
    """Return the share of copies among images with features `views` (n, d) in each orientation, n > 0.

    `real` contains blocks of features (m, d); `is_train` selects at least two training rows.
    """
    nearest = _two_nearest(views, (part[is_train[rows]] for rows, part in pieces(real, BLOCK_ROWS)))
    return float((nearest[:, 0] < COPY_RATIO**2 * nearest[:, 1]).mean())


def pieces(blocks: Blocks, size: int) -> Iterator[tuple[slice, NDArray[np.floating]]]:
    """Yield positions and features of at most `size` rows at a time."""
    offset = 0
    for block in blocks:
        for start in range(0, len(block), size):
            part = block[start : start + size]
            yield slice(offset + start, offset + start + len(part)), part
        offset += len(block)


def _two_nearest(views: Blocks, train: Iterator[NDArray[np.floating]]) -> FloatArray:
    """Return squared distances to the nearest and second nearest train tile, (n, 2)."""
    center = views[0].mean(axis=0, dtype=np.float64)  # small lengths reduce the rounding of differences
    lengths = [((view - center) ** 2).sum(axis=1)[:, None] for view in views]  # (n, 1) each
    best = np.full((len(views[0]), 2), np.inf)
    for block in train:
        rows = block - center  # (m, d)
        minima = np.full((len(best), len(rows)), np.inf)
        for view, length in zip(views, lengths, strict=True):
            np.minimum(minima, length - 2 * ((view - center) @ rows.T), out=minima)  # (n, m)
        squared = np.maximum(minima + (rows**2).sum(axis=1), 0.0)
        best = np.partition(np.concatenate([best, squared], axis=1), 1, axis=1)[:, :2]
    return best
