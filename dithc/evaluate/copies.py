"""Copies of what was learnt: images that lie much nearer to one train tile than to any other (Yoon et al. 2023).

In float64. Legend: n queries, m train tiles, d features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import FloatArray

RATIO = (
    1 / 3
)  # of the distance to the nearest train tile and that to the second nearest, below which an image is a copy
MOST_QUERIES = 2048  # of a set, taken evenly: the error of a share is below 0.011 then
AT_ONCE = 1024  # train tiles, so that distances to them take tens of MB
Blocks = Sequence[NDArray[np.floating]]


def copied_shares(train: Blocks, sets: Sequence[Blocks]) -> tuple[list[float], list[int]]:
    """The share of copies in each set.

    Args:
        train: features of the train tiles (m, d), in blocks of rows; two rows at least.
        sets: of features (n, d) likewise, none of them empty.

    Returns:
        The shares, and how many rows of each set they are of: at most 2,048, taken evenly.
    """
    queries = [_evenly(one) for one in sets]
    center = queries[0].mean(axis=0)  # lengths from there are small numbers, and their differences round less
    nearest = _two_nearest(np.concatenate(queries) - center, train, center=center)  # (n of all sets, 2) squared
    is_copy = nearest[:, 0] < RATIO**2 * nearest[:, 1]
    counts = [len(one) for one in queries]
    return [float(part.mean()) for part in np.split(is_copy, np.cumsum(counts)[:-1])], counts


def _evenly(blocks: Blocks) -> FloatArray:
    """At most MOST_QUERIES rows of consecutive blocks."""
    total = sum(map(len, blocks))
    count = min(total, MOST_QUERIES)
    chosen = np.arange(count) * total // count
    starts = np.cumsum([0, *map(len, blocks)])
    parts = [
        block[chosen[(chosen >= start) & (chosen < start + len(block))] - start]
        for start, block in zip(starts, blocks, strict=False)
    ]
    return np.concatenate(parts).astype(np.float64)


def _two_nearest(queries: FloatArray, train: Blocks, *, center: FloatArray) -> FloatArray:
    """Squared distances to the nearest and the second nearest train tile, (n, 2)."""
    best = np.full((len(queries), 2), np.inf)
    lengths = (queries**2).sum(axis=1)[:, None]  # (n, 1)
    for block in train:
        for start in range(0, len(block), AT_ONCE):
            rows = block[start : start + AT_ONCE] - center  # (m, d)
            squared = np.maximum(lengths + (rows**2).sum(axis=1) - 2 * (queries @ rows.T), 0.0)  # (n, m)
            best = np.partition(np.concatenate([best, squared], axis=1), 1, axis=1)[:, :2]
    return best
