"""Averages of weights over a training, by the profile of what counts how much (Karras et al. 2024, section 3): pure functions.

What: `decay_at`, with which an average of a power-function profile is kept; `Profile`, an average of a length at a step;
`combine`, which makes the average of any length of those that are stored.
Why: the best length is known only when samples are judged, and training again for each would be a training for each.
Invariants: nothing here holds weights, or knows where they are; a length is the relative standard deviation of a profile in time,
sigma_rel in the paper; every average gives all weights together a share of 1; sums are in float64.
How to change it: another profile needs the integral of its product with every other one, in `power.py`.
"""

from dithc.averages.power import LARGEST_MISFIT, LONGEST, SHORTEST, Combination, Profile, combine, decay_at

__all__ = ["LARGEST_MISFIT", "LONGEST", "SHORTEST", "Combination", "Profile", "combine", "decay_at"]
