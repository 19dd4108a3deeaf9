"""Power-function profiles of averages, and the average of any length as a sum of stored ones.

Source: Karras et al. 2024, "Analyzing and Improving the Training Dynamics of Diffusion Models" (arXiv 2312.02696), sections 3.1
and 3.2, appendix C. The average of length sigma_rel after step T counts what the weights were at time t <= T by
p(t) = (gamma + 1) t^gamma / T^(gamma + 1).

Legend: K stored averages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # numpy is loaded where a length is asked for: every job and driver reads the configuration
    import numpy.typing as npt
    from numpy import float64

    Float64: TypeAlias = npt.NDArray[float64]

# 0.289 would be the mean of all weights since the start (gamma 0), and 0.005 (gamma 197) is that of the last hundredth.
SHORTEST, LONGEST = 0.005, 0.28
# Of the norm of a profile; those of 0.05 and 0.07 are 0.3 apart. Averages of 0.05 and 0.1 at the last step alone miss 0.07
# by 0.05 and 0.15 by 0.25; at 8 steps of equal distances, by 0.013 and 0.033.
LARGEST_MISFIT = 0.2
# Added to the squared norm of each stored profile, which is 1 there: stored profiles that are nearly the same (of steps close
# together) then share their weight and do not cancel. Far above the rounding of float64; makes a misfit of 10^-6 at most.
RIDGE = 1e-12


@cache
def gamma_of(length: float) -> float:
    """Exponent gamma of the profile with this relative standard deviation sigma_rel.

    It is the largest root of (gamma + 2)^2 (gamma + 3) = (gamma + 1) / sigma_rel^2 (section 3.1).
    """
    import numpy as np

    share = length**-2
    return float(np.roots([1.0, 7.0, 16.0 - share, 12.0 - share]).real.max())


def decay_at(step: int, *, length: float) -> float:
    """The decay used after optimizer step `step` (1 is the first, of which nothing older is left): (1 - 1 / t)^(gamma + 1)."""
    return float((1.0 - 1.0 / step) ** (gamma_of(length) + 1.0))


@dataclass(frozen=True)
class Profile:
    """How much an average counts the weights of each time: that of a length, after a step (1 is the first)."""

    step: int
    length: float


@dataclass(frozen=True)
class Combination:
    """A profile as a sum of others.

    Attributes:
        shares: of each stored average; together 1.
        misfit: norm of what is missing, as a share of the norm of the profile that is wanted.
    """

    shares: tuple[float, ...]
    misfit: float


def combine(wanted: Profile, stored: Sequence[Profile]) -> Combination:
    """The sum of stored profiles, of shares that are together 1, with the least squared distance from one that is wanted.

    Args:
        wanted: the profile.
        stored: K >= 1 of them, all different.
    """
    import numpy as np

    gammas = np.array([gamma_of(one.length) for one in (*stored, wanted)])
    ends = np.array([one.step for one in (*stored, wanted)], dtype=np.float64)
    products = _products(gammas, ends)  # (K + 1, K + 1)
    norms = np.sqrt(np.diag(products))
    products /= norms[:, None] * norms
    among, towards, of_one = products[:-1, :-1], products[:-1, -1], 1.0 / norms[:-1]  # (K, K), (K), (K)
    free, total = np.linalg.solve(among + RIDGE * np.eye(len(stored)), np.stack([towards, of_one], axis=1)).T
    scaled = free + total * (1.0 / norms[-1] - of_one @ free) / (of_one @ total)  # (K)
    squared = 1.0 - 2.0 * scaled @ towards + scaled @ among @ scaled
    shares = scaled * norms[-1] * of_one
    return Combination(tuple(shares.tolist()), math.sqrt(max(0.0, float(squared))))


def _products(gammas: "Float64", ends: "Float64") -> "Float64":
    """Integrals over time of the products of all pairs of profiles (appendix C): (K), (K) -> (K, K)."""
    import numpy as np

    one, other, first, last = gammas[:, None], gammas, np.minimum.outer(ends, ends), ends
    power = one + other + 1.0
    found: Float64 = (one + 1.0) * (other + 1.0) / power / first
    return found * (first / last[:, None]) ** (one + 1.0) * (first / last) ** (other + 1.0)
