"""Copies of what was learnt: images that lie much nearer to one train tile than to any other (Yoon et al. 2023), however turned.

A picture of the ground is the same one in 8 orientations, of which features tell little. How far an image is from a train tile is
therefore the least of the distances of its 8 orientations from that tile; tiles that were not learnt are measured alike.

In float64. Legend: n queries, m train tiles, d features.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import FloatArray

RATIO = (
    1 / 3
)  # of the distance to the nearest train tile and that to the second nearest, below which an image is a copy
MOST_QUERIES = 2048  # of a set, taken evenly: the error of a share is below 0.011 then
AT_ONCE = 1024  # train tiles, so that distances to them take tens of MB
Blocks = Sequence[NDArray[np.floating]]
Rows = NDArray[np.int64]


def evenly(rows: Rows) -> Rows:
    """At most MOST_QUERIES of them."""
    count = min(len(rows), MOST_QUERIES)
    chosen: Rows = rows[np.arange(count) * len(rows) // max(count, 1)]
    return chosen


def take(blocks: Blocks, rows: Rows) -> NDArray[np.floating]:
    """These rows, which rise, of consecutive blocks."""
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
    nearest = _two_nearest(views, _train(real, is_train))
    return float((nearest[:, 0] < RATIO**2 * nearest[:, 1]).mean())


def _train(real: Blocks, is_train: NDArray[np.bool_]) -> Iterator[NDArray[np.floating]]:
    """The rows that were learnt, at most AT_ONCE at a time."""
    begin = 0
    for block in real:
        for start in range(0, len(block), AT_ONCE):
            part = block[start : start + AT_ONCE]
            yield part[is_train[begin + start : begin + start + len(part)]]
        begin += len(block)


def _two_nearest(views: Blocks, train: Iterator[NDArray[np.floating]]) -> FloatArray:
    """Squared distances to the nearest and the second nearest train tile, (n, 2)."""
    center = views[0].mean(axis=0, dtype=np.float64)  # lengths from there are small numbers, and differences round less
    lengths = [((view - center) ** 2).sum(axis=1)[:, None] for view in views]  # (n, 1) each
    best = np.full((len(views[0]), 2), np.inf)
    for block in train:
        rows = block - center  # (m, d)
        least = np.full((len(best), len(rows)), np.inf)
        for view, own in zip(views, lengths, strict=True):
            np.minimum(least, own - 2 * ((view - center) @ rows.T), out=least)  # (n, m)
        squared = np.maximum(least + (rows**2).sum(axis=1), 0.0)
        best = np.partition(np.concatenate([best, squared], axis=1), 1, axis=1)[:, :2]
    return best
