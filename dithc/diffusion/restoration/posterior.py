"""Posterior mean under an observation, as a wrapper of `denoise`.

With x_t = a x + s noise, the network's clean image x^ and an observation y = A x + noise of variance Sy, every rule is
x' = x^ + C A* (Sy + A C A*)^-1 (y - A x^). The rules differ in C, the covariance of x given x_t.
Sources: Rozet et al. 2024 (arXiv 2405.13712): C = s^2 / a J, with J the Jacobian of x^ in x_t, exact for an exact network
(MMPS). Without the Jacobian: C = (Sx^-1 + a^2 / s^2)^-1, exact for normal data of covariance Sx.
Legend: N images, C bands, H, W image, M observed numbers.
"""

from typing import Literal

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.objective import Objective, parts
from dithc.diffusion.restoration.covariance import RadialCovariance
from dithc.diffusion.restoration.observation import Observation
from dithc.diffusion.restoration.solver import Solver

Rule = Literal["covariance", "jacobian"]

# Below this share of the image, errors of the network's Jacobian, divided by the share, exceed the covariance.
MIN_SIGNAL = 0.02
SHARE, LEAST_SIGNAL = 0.03, 0.1
ITERATIONS = {"covariance": 30, "jacobian": 8}


def posterior_denoiser(
    denoise: Denoise,
    objective: Objective,
    observation: Observation,
    covariance: RadialCovariance,
    rule: Rule = "covariance",
    iterations: int | None = None,
) -> Denoise:
    """Return `denoise(x, t)` of the images given an observation, for any sampler.

    Args:
        denoise: Network with guidance and windows, before `Objective.sampled`; (x (N, C, H, W), t (N)) -> (N, C or 2C, H,
            W). All timesteps t are equal. The rule "jacobian" requires gradients with respect to x.
        objective: Meaning of the network's output.
        observation: Numbers observed of each image.
        covariance: Covariance of the training data.
        rule: C, see the module.
        iterations: Limit of the conjugate gradient iterations per call.

    Raises:
        UserError: The rule is unknown.
    """
    if rule not in ITERATIONS:
        raise user_error("rule of the posterior", got=repr(rule), expected=" or ".join(ITERATIONS), fix="name one of them")
    limit = ITERATIONS[rule] if iterations is None else iterations
    spectrum = covariance.spectrum(observation.operator.shape[1:])

    def posterior(x: Tensor, t: Tensor) -> Tensor:
        signal, noise = (float(part[0]) for part in objective.signal_and_noise(t))
        filtered = (spectrum * noise**2 / (spectrum * signal**2 + noise**2)).to(x.dtype)  # C, finite without signal
        differentiated = rule == "jacobian" and signal > MIN_SIGNAL
        with torch.set_grad_enabled(differentiated):
            start = x.detach().requires_grad_(differentiated)
            predicted, rest = parts(denoise(start, t).to(x.dtype), channels=x.shape[1])
            clean = objective.clean(predicted, start, t)
        if noise == 0:  # the image is certain, and its prediction has no inverse
            return torch.cat([predicted, rest], dim=1).detach()

        def jacobian(z: Tensor) -> Tensor:
            return noise**2 / signal * torch.autograd.grad(clean, start, z, retain_graph=True)[0]

        error = SHARE * noise / max(signal, LEAST_SIGNAL)
        solver = Solver(observation, covariance, filtered, error)
        clean = clean.detach()
        updated = clean + solver.update(clean, limit=limit, multiply=jacobian if differentiated else None)
        return torch.cat([objective.output_of(updated, x, t), rest.detach()], dim=1)

    return posterior


def conditional_mean(observation: Observation, covariance: RadialCovariance, iterations: int = 100) -> Tensor:
    """Return the mean (N or 1, C, H, W) of normal data with this covariance, given an observation."""
    channels, height, width = observation.operator.shape
    spectrum = covariance.spectrum((height, width))
    mean = covariance.mean.to(observation.values.dtype)[None, :, None, None].expand(1, channels, height, width)
    solve = Solver(observation, covariance, spectrum.to(mean.dtype), 0.0)
    return mean + solve.update(mean, limit=iterations)
