"""Posterior sampling: images that agree with an observation, drawn with a network trained without it.

`Selection`, `Resampling` and `BandGroups` are operators, `Observation` adds the observed numbers and their noise.
`posterior_denoiser` wraps a network's `denoise` for any sampler. `RadialCovariance` estimates the covariance of the
training data, which the default rule requires. `project` replaces observed pixels after the last step.
`conditional_mean` is the baseline without a network. `restoration_times` chooses timesteps.
"""

from dithc.diffusion.restoration.covariance import RadialCovariance
from dithc.diffusion.restoration.observation import Observation, project
from dithc.diffusion.restoration.operators import BandGroups, LinearOperator, Resampling, Selection
from dithc.diffusion.restoration.posterior import posterior_denoiser

__all__ = [
    "BandGroups",
    "LinearOperator",
    "Observation",
    "RadialCovariance",
    "Resampling",
    "Selection",
    "posterior_denoiser",
    "project",
]
