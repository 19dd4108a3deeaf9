"""95% interval of a Fréchet distance, from the influence of each image.

The influence is the change of the distance with the weight of an image. The sum of squared influences is the
first-order variance of resampling the images (the bootstrap): the infinitesimal jackknife (Efron 1982, chapter 6). The
interval does not contain the bias of the distance for few images, which the floor estimates.

In float64. Legend: n rows of a set, d features.
"""

import numpy as np

from dithc.core.artifacts import summaries
from dithc.evaluate.distances.frechet import varying
from dithc.evaluate.memorization import Blocks, pieces
from dithc.evaluate.statistics import FloatArray, Statistics

BLOCK_ROWS = 4096  # rows, so that each copy needs 64 MB with 2,048 features


def fid_interval(value: float, a: Statistics, blocks_a: Blocks, b: Statistics, blocks_b: Blocks) -> list[float] | None:
    """Return the normal 95% interval of the distance `value` from statistics and features (n, d) of both sets.

    None if a set has no more images than features.
    """
    if min(a.n, b.n) <= a.num_features:
        return None
    variance = _variance(a, blocks_a, b) + _variance(b, blocks_b, a)
    half = summaries.NORMAL_95 * float(np.sqrt(variance))
    return [value - half, value + half]


def _variance(statistics: Statistics, blocks: Blocks, other: Statistics) -> float:
    """Return the contribution of one set to the variance of the distance.

    With z = x - mean, the influence of row x is 2 (mu - mu') z + z^T (1 - T) z minus its mean. 1 - T is the derivative
    of tr A + tr B - 2 tr (A B)^(1/2) by A. T is the linear map from the Gaussian of A to the Gaussian of B.
    """
    mean, slope = statistics.mean(), 2 * (statistics.mean() - other.mean())  # (d,)
    curvature = np.eye(statistics.num_features) - _transport(statistics.covariance(), other.covariance())  # (d, d)
    total = squares = 0.0
    for _, part in pieces(blocks, BLOCK_ROWS):
        z = part.astype(np.float64) - mean  # (rows, d)
        influence = z @ slope + np.einsum("nd,nd->n", z @ curvature, z)
        total, squares = total + float(influence.sum()), squares + float((influence**2).sum())
    return max(squares - total**2 / statistics.n, 0.0) / statistics.n**2


def _transport(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return T (d, d) with T A T = B on the directions in which A varies: A^(-1/2) (A^(1/2) B A^(1/2))^(1/2) A^(-1/2)."""
    w, v = varying(a)
    root, inverse = v * np.sqrt(w), v / np.sqrt(w)  # (d, r)
    eigenvalues, vectors = np.linalg.eigh(root.T @ b @ root)  # (r,), (r, r)
    half = (inverse @ vectors) * np.maximum(eigenvalues, 0.0) ** 0.25  # (d, r)
    return np.asarray(half @ half.T)
