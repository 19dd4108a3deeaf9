"""Precision and recall of two sets of features.

A set covers the balls around its rows with the distance to the k-th nearest other row as radius. Precision is the share
of generated images in real balls, recall the share of real images in generated balls (Kynkäänniemi et al. 2019, section
2). Distances are computed for two blocks of rows at a time.

In float64. Legend: n real and m generated rows, d features.
"""

from collections.abc import Iterator

import numpy as np

from dithc.core.logging import user_error
from dithc.evaluate.memorization import Blocks, pieces
from dithc.evaluate.statistics import FloatArray

BLOCK_ROWS = 1024  # rows per block: distances of two blocks need 8 MB, 2,048 features of a block 17 MB
NEIGHBORS = 3  # k


def precision_recall(real: Blocks, generated: Blocks) -> dict[str, float]:
    """Return precision and recall from blocks of real (n, d) and generated (m, d) features.

    A row at the radius is inside, so equal sets return 1.
    """
    n, m = sum(map(len, real)), sum(map(len, generated))
    if min(n, m) <= NEIGHBORS:
        raise user_error(
            "too few images for precision and recall",
            got=f"n = {n} real and {m} generated",
            expected=f"more than {NEIGHBORS} of each, the number of neighbors",
            fix="use more images, or remove these from `metrics` of the evaluation",
        )
    center = real[0].mean(axis=0, dtype=np.float64)  # small lengths reduce the rounding of differences
    real_radii, generated_radii = (_squared_radii(blocks, center) for blocks in (real, generated))
    is_precise, is_recalled = np.zeros(m, bool), np.zeros(n, bool)
    for rows, x in _centered(real, center):
        for columns, y in _centered(generated, center):
            squared = _squared(x, y)  # (rows, columns)
            is_precise[columns] |= (squared <= real_radii[rows, None]).any(axis=0)
            is_recalled[rows] |= (squared <= generated_radii[columns]).any(axis=1)
    return {"precision": float(is_precise.mean()), "recall": float(is_recalled.mean())}


def _centered(blocks: Blocks, center: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    return ((rows, part - center) for rows, part in pieces(blocks, BLOCK_ROWS))


def _squared(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return squared distances (rows of x, rows of y) from the lengths and the products of rows.

    Distances below the resolution of the products are 0, so that equal rows have distance 0 in either order.
    """
    lengths = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)  # (rows of x, rows of y)
    squared = lengths - 2 * (x @ y.T)
    squared[squared < lengths * (4 * x.shape[1] * np.finfo(np.float64).eps)] = 0.0
    return np.asarray(squared)


def _squared_radii(blocks: Blocks, center: FloatArray) -> FloatArray:
    """Return the squared distance of each row to its k-th nearest other row.

    A slack for rounding widens the radius, so that a row at the edge is inside the ball.
    """
    count = NEIGHBORS + 1  # a row is its own nearest
    radii = np.empty(sum(map(len, blocks)))
    for rows, x in _centered(blocks, center):
        best = np.full((len(x), count), np.inf)
        for _, y in _centered(blocks, center):
            best = np.partition(np.concatenate([best, _squared(x, y)], axis=1), count - 1, axis=1)[:, :count]
        radii[rows] = best.max(axis=1) + (x**2).sum(axis=1) * (8 * x.shape[1] * np.finfo(np.float64).eps)
    return radii
