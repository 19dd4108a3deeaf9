"""The Fréchet distance of two sets of features (FID), and its floor for a finite real set.

Pure functions in float64. Legend: n rows, d features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dithc.core.logging import get_logger
from dithc.evaluate.statistics import FloatArray, Statistics, require_same

log = get_logger(__name__)


@dataclass(frozen=True)
class FidFloor:
    """FID of one random half of a set against its other half, and the number of images in each."""

    fid: float
    n_first: int
    n_second: int


def fid(a: Statistics, b: Statistics) -> float:
    """Return the Fréchet inception distance of two sets (Heusel et al. 2017, equation 6)."""
    require_same(a, b)
    for text in small_sample_warning(a, b):
        log.warning(text)
    return frechet_distance(a.mean(), a.covariance(), b.mean(), b.covariance())


def small_sample_warning(a: Statistics, b: Statistics) -> list[str]:
    """Return warnings on sets that are too small for their number of features."""
    return [
        f"n = {s.n} images for {s.num_features} features: the covariance is rank-deficient, the distance is inflated"
        for s in (a, b)
        if s.n <= s.num_features
    ]


def frechet_distance(mu_a: FloatArray, sigma_a: FloatArray, mu_b: FloatArray, sigma_b: FloatArray) -> float:
    """Return |mu_a - mu_b|^2 + tr A + tr B - 2 tr (A B)^(1/2), at least 0, for means (d,) and covariances A and B (d, d).

    With A = V diag(w) V^T and R = V diag(sqrt w), A B and the symmetric R^T B R have the same non-zero eigenvalues.
    The trace is then the sum of their square roots, from two symmetric eigenproblems. Directions in which A has no
    variance beyond rounding are omitted: their square roots would turn rounding of 1e-16 into an error of 1e-8 each.
    """
    w, v = varying(sigma_a)
    root = v * np.sqrt(w)  # (d, r)
    product = root.T @ sigma_b @ root  # (r, r)
    eigenvalues = np.linalg.eigvalsh((product + product.T) / 2)  # (r,)
    trace = np.trace(sigma_a) + np.trace(sigma_b) - 2 * np.sqrt(np.maximum(eigenvalues, 0)).sum()
    return float(max(np.sum((mu_a - mu_b) ** 2) + trace, 0.0))


def varying(sigma: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues (r,) and eigenvectors (d, r) of a covariance with variance beyond rounding."""
    w, v = np.linalg.eigh(sigma)  # (d,), (d, d)
    mask = w > max(w[-1], 0.0) * len(w) * np.finfo(np.float64).eps
    return w[mask], v[:, mask]


def fid_floor(blocks: Sequence[NDArray[np.floating]], *, seed: int = 0) -> FidFloor:
    """Return the FID of two random halves of a real set of at least four rows, in blocks of features (n, d).

    It is the best score of a generator at n / 2, somewhat above the distance of two new sets of the full size. A score
    near or below it means that the sets cannot be distinguished at this n.
    """
    n = sum(map(len, blocks))
    in_first = np.random.default_rng(seed).permutation(n) < n // 2  # (n,)
    first, second = Statistics(blocks[0].shape[1]), Statistics(blocks[0].shape[1])
    start = 0
    for block in blocks:
        mask = in_first[start : start + len(block)]
        first.update(block[mask])
        second.update(block[~mask])
        start += len(block)
    value = frechet_distance(first.mean(), first.covariance(), second.mean(), second.covariance())
    return FidFloor(fid=value, n_first=first.n, n_second=second.n)


def fid_floor_at(ground: FidFloor | None, *, n_real: int, n_generated: int, num_features: int) -> float | None:
    """Return the floor at the n of a score; None without a floor, or if a half has no more images than features.

    The distance of two sets of one distribution falls as 1/n + 1/m (Chong and Forsyth 2020, section 3) to first order,
    which requires more images than features.
    """
    if ground is None or min(ground.n_first, ground.n_second) <= num_features:
        return None
    return ground.fid * (1 / n_real + 1 / n_generated) / (1 / ground.n_first + 1 / ground.n_second)
