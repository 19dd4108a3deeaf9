"""Averages of weights over training with power-function profiles: pure functions.

Source: Karras et al. 2024, "Analyzing and Improving the Training Dynamics of Diffusion Models" (arXiv 2312.02696),
sections 3.1 and 3.2, appendix C. The average of length sigma_rel after step T weights the parameters of time t <= T by
p(t) = (gamma + 1) t^gamma / T^(gamma + 1). A length is the relative standard deviation of a profile in time.

Contents: `decay_at_step` returns the decay of an average at a step. `PowerFunctionProfile` is an average of a length after a
step. `combine_profiles` computes an average of any length from stored averages, because the best length is only known after
evaluation.

Invariants: the module holds no weights. The shares of all weights in an average sum to 1. Sums use float64.

Extending: another profile requires the integrals of its products with all other profiles.

Legend: K stored averages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # numpy is imported on use, because every job and driver reads the configuration
    import numpy.typing as npt
    from numpy import float64

    Float64: TypeAlias = npt.NDArray[float64]

# Length 0.289 (gamma 0) is the mean of all weights since the start, and 0.005 (gamma 197) the mean of the last
# hundredth.
SHORTEST, LONGEST = 0.005, 0.28
# Relative to the norm of a profile; the profiles of 0.05 and 0.07 differ by 0.3. Averages of 0.05 and 0.1 at the last
# step alone miss 0.07 by 0.05 and 0.15 by 0.25; at 8 equidistant steps, by 0.013 and 0.033.
LARGEST_MISFIT = 0.2
# Added to the squared norm of each stored profile, which is normalized to 1. Nearly equal profiles (of close steps)
# then share their weight instead of canceling. Far above the rounding of float64; causes a misfit of 10^-6 at most.
RIDGE = 1e-12


@cache
def gamma_of(length: float) -> float:
    """Exponent gamma of the profile with this relative standard deviation sigma_rel.

    It is the largest root of (gamma + 2)^2 (gamma + 3) = (gamma + 1) / sigma_rel^2 (section 3.1).
    """
    import numpy as np

    share = length**-2
    return float(np.roots([1.0, 7.0, 16.0 - share, 12.0 - share]).real.max())


def decay_at_step(step: int, *, length: float) -> float:
    """Return the decay after optimizer step `step` (from 1, which discards older weights): (1 - 1 / t)^(gamma + 1)."""
    return float((1.0 - 1.0 / step) ** (gamma_of(length) + 1.0))


@dataclass(frozen=True)
class PowerFunctionProfile:
    """Profile of an average of one length after a step (from 1)."""

    step: int
    length: float


@dataclass(frozen=True)
class ProfileCombination:
    """A profile as a sum of stored profiles."""

    shares: tuple[float, ...]  # of each stored average; the sum is 1
    misfit: float  # norm of the residual relative to the norm of the requested profile


def combine_profiles(target: PowerFunctionProfile, stored: Sequence[PowerFunctionProfile]) -> ProfileCombination:
    """Return the sum of K >= 1 distinct stored profiles with the least squared distance from a requested profile."""
    import numpy as np

    gammas = np.array([gamma_of(profile.length) for profile in (*stored, target)])
    ends = np.array([profile.step for profile in (*stored, target)], dtype=np.float64)
    products = _products(gammas, ends)  # (K + 1, K + 1)
    norms = np.sqrt(np.diag(products))
    products /= norms[:, None] * norms
    gram, cross, inverse = products[:-1, :-1], products[:-1, -1], 1.0 / norms[:-1]  # (K, K), (K), (K)
    free, total = np.linalg.solve(gram + RIDGE * np.eye(len(stored)), np.stack([cross, inverse], axis=1)).T
    scaled = free + total * (1.0 / norms[-1] - inverse @ free) / (inverse @ total)  # (K)
    squared = 1.0 - 2.0 * scaled @ cross + scaled @ gram @ scaled
    shares = scaled * norms[-1] * inverse
    return ProfileCombination(tuple(shares.tolist()), math.sqrt(max(0.0, float(squared))))


def _products(gammas: "Float64", ends: "Float64") -> "Float64":
    """Return the integrals over time of the products of all pairs of profiles (appendix C): (K), (K) -> (K, K)."""
    import numpy as np

    rows, columns, first, last = gammas[:, None], gammas, np.minimum.outer(ends, ends), ends
    power = rows + columns + 1.0
    scale: Float64 = (rows + 1.0) * (columns + 1.0) / power / first
    return scale * (first / last[:, None]) ** (rows + 1.0) * (first / last) ** (columns + 1.0)
