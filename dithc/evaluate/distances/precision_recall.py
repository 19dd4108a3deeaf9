"""Precision and recall, density and coverage of two sets of features.

A set covers the balls around its rows with the distance to the k-th nearest other row as radius. Precision is the share
of generated images in real balls, recall the share of real images in generated balls (Kynkäänniemi et al. 2019, section
2). Density is the number of real balls that contain an image, over k. Coverage is the share of real balls with a
generated image (Naeem et al. 2020, section 3). Distances are computed for two blocks of rows at a time.

In float64. Legend: n real and m generated rows, d features.
"""

from collections.abc import Iterator

import numpy as np

from dithc.core.logging import user_error
from dithc.evaluate.memorization import Blocks, pieces
from dithc.evaluate.statistics import FloatArray

BLOCK_ROWS = 1024  # rows per block: distances of two blocks need 8 MB, 2,048 features of a block 17 MB
PRECISION_NEIGHBORS, DENSITY_NEIGHBORS = 3, 5  # k in both papers


def precision_recall(real: Blocks, generated: Blocks) -> dict[str, float]:
    """Return precision, recall, density and coverage from blocks of real (n, d) and generated (m, d) features.

    All are 0 to 1, except density without upper bound. A row at the radius is inside, so equal sets return 1.
    """
    k, k_density = PRECISION_NEIGHBORS, DENSITY_NEIGHBORS
    n, m, largest_k = sum(map(len, real)), sum(map(len, generated)), max(k, k_density)
    if min(n, m) <= largest_k:
        raise user_error(
            "too few images for precision, recall, density and coverage",
            got=f"n = {n} real and {m} generated",
            expected=f"more than {largest_k} of each, the number of neighbors",
            fix="use more images, or remove these from `metrics` of the evaluation",
        )
    center = real[0].mean(axis=0, dtype=np.float64)  # small lengths reduce the rounding of differences
    real_radii, generated_radii = (_squared_radii(blocks, center, (k, k_density)) for blocks in (real, generated))
    is_precise, is_covered = np.zeros(m, bool), np.zeros(n, bool)
    is_recalled, count = np.zeros(n, bool), 0
    for rows, x in _centered(real, center):
        for columns, y in _centered(generated, center):
            squared = _squared(x, y)  # (rows, columns)
            is_precise[columns] |= (squared <= real_radii[k][rows, None]).any(axis=0)
            is_recalled[rows] |= (squared <= generated_radii[k][columns]).any(axis=1)
            is_within = squared <= real_radii[k_density][rows, None]
            count += int(is_within.sum())
            is_covered[rows] |= is_within.any(axis=1)
    shares = {"precision": is_precise, "recall": is_recalled, "coverage": is_covered}
    return {name: float(share.mean()) for name, share in shares.items()} | {"density": count / (k_density * m)}


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


def _squared_radii(blocks: Blocks, center: FloatArray, ranks: tuple[int, ...]) -> dict[int, FloatArray]:
    """Return the squared distance of each row to its k-th nearest other row, for each k of `ranks`.

    A slack for rounding widens the radius, so that a row at the edge is inside the ball.
    """
    count = max(ranks) + 1  # a row is its own nearest
    radii = {k: np.empty(sum(map(len, blocks))) for k in ranks}
    for rows, x in _centered(blocks, center):
        best = np.full((len(x), count), np.inf)
        for _, y in _centered(blocks, center):
            best = np.partition(np.concatenate([best, _squared(x, y)], axis=1), count - 1, axis=1)[:, :count]
        best.sort(axis=1)
        slack = (x**2).sum(axis=1) * (8 * x.shape[1] * np.finfo(np.float64).eps)
        for k in ranks:
            radii[k][rows] = best[:, k] + slack
    return radii
