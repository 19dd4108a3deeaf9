"""Averages of weights over training with power-function profiles (Karras et al. 2024, section 3): pure functions.

Contents: `decay_at_step` returns the decay of an average at a step. `PowerFunctionProfile` is an average of a length after a
step. `combine_profiles` computes an average of any length from stored averages, because the best length is only known after
evaluation.

Invariants: the package holds no weights. A length is the relative standard deviation of a profile in time, sigma_rel
in the paper. The shares of all weights in an average sum to 1. Sums use float64.

Extending: another profile requires the integrals of its products with all other profiles in `power_function.py`.
"""

from dithc.core.posthoc_ema.power_function import (
    LARGEST_MISFIT,
    LONGEST,
    SHORTEST,
    PowerFunctionProfile,
    ProfileCombination,
    combine_profiles,
    decay_at_step,
)

__all__ = [
    "LARGEST_MISFIT",
    "LONGEST",
    "SHORTEST",
    "PowerFunctionProfile",
    "ProfileCombination",
    "combine_profiles",
    "decay_at_step",
]
