"""Posterior sampling: images that agree with an observation, drawn with a network that was not trained for the task.

Contents: `Selection`, `Resampling` and `BandGroups` are operators; `Observation` adds the observed numbers and their
noise. `posterior_denoiser` wraps a network's `denoise` for any sampler, and `restoration_times` chooses its timesteps.
`RadialCovariance` estimates the covariance of the training data, `measure_errors` the covariance of the network's errors.
`Observation.project` replaces observed pixels after the last step. `conditional_mean` is the mean without a network, a
baseline.

Invariants:

- All values are in the scaled units of the images. Operators and noise are linear and independent of the images.
- Images of a batch do not influence each other.
- A covariance multiplies cosine coefficients, so that an image continues as its mirror image beyond its border.

Extending: an operator is a subclass of `LinearOperator`; its `gains` only affect the number of iterations. A rule is
another covariance C in `posterior.py`.
"""

from dithc.diffusion.restoration.covariance import RadialCovariance
from dithc.diffusion.restoration.errors import measure_errors
from dithc.diffusion.restoration.observation import Observation
from dithc.diffusion.restoration.operators import BandGroups, LinearOperator, Resampling, Selection
from dithc.diffusion.restoration.posterior import conditional_mean, posterior_denoiser, restoration_times

__all__ = [
    "BandGroups",
    "LinearOperator",
    "Observation",
    "RadialCovariance",
    "Resampling",
    "Selection",
    "conditional_mean",
    "measure_errors",
    "posterior_denoiser",
    "restoration_times",
]
