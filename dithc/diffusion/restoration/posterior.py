"""Posterior mean under an observation, as a wrapper of `denoise`.

With x_t = a x + s noise, the network's clean image x^ and an observation y = A x + noise of variance Sy, every rule is
x' = x^ + C A* (Sy + A C A*)^-1 (y - A x^). The rules differ in C, the covariance of x given x_t.
Sources: Rozet et al. 2024 (arXiv 2405.13712): C = s^2 / a J, with J the Jacobian of x^ in x_t, exact for an exact network
(MMPS). Without the Jacobian: the covariance of the network's errors x^ - x at s / a, measured by `measure_errors`; or
C = (Sx^-1 + a^2 / s^2)^-1, exact for normal data of covariance Sx.
Legend: N images, C bands, H, W image, M observed numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.objective import Objective, parts
from dithc.diffusion.restoration.covariance import RadialCovariance
from dithc.diffusion.restoration.errors import LEAST_SIGNAL, errors_at
from dithc.diffusion.restoration.observation import Observation
from dithc.diffusion.restoration.solver import Solver

Rule = Literal["covariance", "jacobian"]
ITERATIONS = {"covariance": 40, "jacobian": 8}

# Below this signal, errors of the network's Jacobian, divided by the signal, exceed the covariance.
MIN_SIGNAL = 0.02
# Acceptable error of a clean image per pixel, relative to s / a. An error of e s / a at each step shifts an image by up
# to e pi / 2 deviations of the posterior. Smaller values cost iterations. At least `LEAST_SIGNAL` counts as signal.
ACCEPTABLE_ERROR = 0.01
NOISE_RATIOS = 1 / LEAST_SIGNAL - 1, 0.015  # s / a of a flow after pure noise, and of the last timestep


def posterior_denoiser(
    denoise: Denoise,
    objective: Objective,
    observation: Observation,
    covariance: RadialCovariance,
    rule: Rule = "covariance",
    iterations: int | None = None,
    errors: Mapping[float, RadialCovariance] | None = None,
) -> "PosteriorDenoiser":
    """Return `denoise(x, t)` of the images given an observation, for any sampler.

    It belongs to one sampling run at a time: a timestep above the last timestep starts a new run. It holds the solution
    of the last call, from which the next solve starts.

    Args:
        denoise: Network with guidance and windows, before `Objective.sampled`; (x (N, C, H, W), t (N)) -> (N, C or 2C, H,
            W). All timesteps t are equal. The rule "jacobian" requires gradients with respect to x.
        objective: Meaning of the network's output.
        observation: Numbers observed of each image.
        covariance: Covariance of the training data.
        rule: C, see the module.
        iterations: Limit of the conjugate gradient iterations per call.
        errors: Covariances of the network's errors by s / a from `measure_errors`; None for C of normal data.

    Raises:
        UserError: The rule is unknown, or the bands do not match the covariance.
    """
    if rule not in ITERATIONS:
        fix = "choose one of the two"
        raise user_error("rule of the posterior", got=repr(rule), expected=" or ".join(ITERATIONS), fix=fix)
    if observation.operator.shape[0] != len(covariance.mean):
        got, fix = observation.operator.shape[0], "estimate the covariance from tiles with the bands of the images"
        raise user_error("bands of the observation", got=got, expected=len(covariance.mean), fix=fix)
    limit = ITERATIONS[rule] if iterations is None else iterations
    by_jacobian = rule == "jacobian"
    return PosteriorDenoiser(
        denoise, objective, observation, covariance, errors=errors, by_jacobian=by_jacobian, limit=limit
    )


class PosteriorDenoiser:
    """`denoise` given an observation, see `posterior_denoiser`.

    `error` (N) is the largest remaining error of a solve of the sampling run, see `Solver.update`.
    """

    def __init__(
        self,
        denoise: Denoise,
        objective: Objective,
        observation: Observation,
        covariance: RadialCovariance,
        *,
        errors: Mapping[float, RadialCovariance] | None,
        by_jacobian: bool,
        limit: int,
    ) -> None:
        self._denoise, self._objective, self.observation = denoise, objective, observation
        self._covariance, self._errors, self._by_jacobian, self._limit = covariance, errors, by_jacobian, limit
        self._time: float | None = None  # of the last call
        self._solver: Solver | None = None
        self._solution: Tensor | None = None
        self.error = torch.zeros(0)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        signal, noise = (float(part[0]) for part in self._objective.signal_and_noise(t))
        by_jacobian = self._by_jacobian and signal >= MIN_SIGNAL
        with torch.set_grad_enabled(by_jacobian):
            start = x.detach().requires_grad_(by_jacobian)
            predicted, rest = parts(self._denoise(start, t).to(x.dtype), channels=x.shape[1])
            clean = self._objective.clean(predicted, start, t)
        if noise == 0:  # x is the clean image, and its prediction has no inverse
            return torch.cat([predicted, rest], dim=1).detach()

        def jacobian(z: Tensor) -> Tensor:
            return noise**2 / signal * torch.autograd.grad(clean, start, z, retain_graph=True)[0]

        self._prepare(float(t[0]), signal, noise, clean)
        assert self._solver is not None
        known = clean.detach()
        step, self._solution, error = self._solver.update(
            known, limit=self._limit, multiply=jacobian if by_jacobian else None, start=self._solution
        )
        self.error = error if len(self.error) != len(error) else torch.maximum(self.error, error)
        return torch.cat([self._objective.output_of(known + step, x, t), rest.detach()], dim=1)

    def _prepare(self, time: float, signal: float, noise: float, clean: Tensor) -> None:
        """Compute the solver of a new timestep; discard the solution of another run."""
        if self._solver is None or time != self._time:
            self._solver = None  # frees its memory
            ratio = noise / max(signal, LEAST_SIGNAL)
            covariance, spectrum = self._covariance_at(ratio)
            error = ACCEPTABLE_ERROR * ratio
            self._solver = Solver(self.observation, covariance, spectrum.to(clean.dtype), error=error)
        if (
            self._time is None
            or time > self._time
            or (self._solution is not None and len(self._solution) != len(clean))
        ):
            self._solution, self.error = None, torch.zeros(0)
        self._time = time

    def _covariance_at(self, ratio: float) -> tuple[RadialCovariance, Tensor]:
        """Return the basis of C at a ratio s / a, and the spectrum of C, (C, H, W)."""
        size = self.observation.operator.shape[1:]
        if self._errors:
            return errors_at(self._errors, ratio, size)
        spectrum = self._covariance.spectrum(size)
        return self._covariance, spectrum / (1 + spectrum / ratio**2)


def restoration_times(objective: Objective, steps: int) -> list[float]:
    """Return falling timesteps of a sampling run under an observation.

    After pure noise, they are even in the log of the signal-to-noise ratio: cosines of large scale appear in almost pure
    noise.

    Args:
        objective: Objective of the network.
        steps: Number of timesteps: evaluations, or for heun the number of intervals, half the evaluations.

    Raises:
        UserError: There are more steps than timesteps of the schedule.
    """
    if objective.schedule is not None:
        return [int(step) for step in objective.schedule.respaced(steps, spacing="snr").timesteps.flip(0)]
    first, last = (math.log(ratio) for ratio in NOISE_RATIOS)
    ratios = torch.linspace(first, last, max(0, steps - 1), dtype=torch.float64).exp()
    return [objective.last, *(objective.last * ratios / (1 + ratios)).tolist()]


def conditional_mean(observation: Observation, covariance: RadialCovariance, iterations: int = 200) -> Tensor:
    """Return the mean (N or 1, C, H, W) of normal data with this covariance, given an observation, in float64."""
    channels, height, width = observation.operator.shape
    # In float64, because C of pure noise has a constant of all pixels, which exceeds the precision of float32.
    observation = replace(observation, values=observation.values.double())
    mean = covariance.mean.double()[None, :, None, None].expand(1, channels, height, width)
    solver = Solver(observation, covariance, covariance.spectrum((height, width)), error=0.0)
    return mean + solver.update(mean, limit=iterations, tolerance=1e-4)[0]
