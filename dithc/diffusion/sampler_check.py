"""Validation of a plugin sampler before its first image, on a distribution with known noise and velocity.

The data are independent normal numbers of mean m and deviation s. The sampler must reproduce m and s. Legend: N images,
C channels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dithc.core import plugins
from dithc.core.logging import UserError
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.noise import Noise
from dithc.diffusion.schedule import Schedule, pick

MEAN, DEVIATION = 0.5, 0.5
STEPS, IMAGES, SHAPE = 100, 8, (4, 16, 16)
# Relative to m and s. Built-in first-order samplers miss s by up to 7% in `STEPS` steps; chance adds up to 2%.
WITHIN = 0.1
SAME = 1e-4  # between an image alone and in a batch: rounding only


def exact_noise(schedule: Schedule) -> Denoise:
    """Return a function of the expected noise in x (N, C, h, w) at timesteps (N) of a schedule."""

    def noise(x: Tensor, t: Tensor) -> Tensor:
        alpha_bar = pick(schedule.alpha_bar, t, x)
        return (1 - alpha_bar).sqrt() * (x - alpha_bar.sqrt() * MEAN) / (alpha_bar * DEVIATION**2 + 1 - alpha_bar)

    return noise


def exact_velocity(x: Tensor, t: Tensor) -> Tensor:
    """Return the expected noise - image at x (N, C, h, w) and 1000 times the time (N)."""
    time = (t / 1000.0).to(x.dtype).reshape(-1, 1, 1, 1)
    spread = (x - (1 - time) * MEAN) / ((1 - time) ** 2 * DEVIATION**2 + time**2)
    return time * spread - (MEAN + (1 - time) * DEVIATION**2 * spread)


@torch.no_grad()
def validate_sampler(name: object, run: Callable[[Denoise, Noise, int], Any], predict: Denoise) -> None:
    """Validate a sampler, `run` with network, noise and steps, for a network that returns `predict`.

    Raises UserError, about `name`, if it fails, returns no images, needs more or fewer evaluations than steps, is not
    reproducible, mixes images of a batch, or misses the distribution.
    """
    evaluations = 0

    def evaluate(x: Tensor, t: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return predict(x, t)

    def noise(images: int, step: int) -> Tensor:
        generators = (torch.Generator().manual_seed(1000 * image + step) for image in range(images))
        return torch.stack([torch.randn(SHAPE, generator=generator) for generator in generators])  # (N, C, h, w)

    try:
        images, repeated, single = (run(evaluate, partial(noise, count), STEPS) for count in (IMAGES, IMAGES, 1))
    except Exception as error:  # plugin code may raise anything
        raise _error(name, got=f"{type(error).__name__}: {error}", expected="images") from error
    if not isinstance(images, Tensor) or images.shape != (IMAGES, *SHAPE) or not bool(images.isfinite().all()):
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise _error(name, got=got, expected=f"finite numbers {(IMAGES, *SHAPE)}")
    if evaluations != 3 * STEPS:
        expected = f"{STEPS}, one per step: `steps` of an evaluation is the cost of an image"
        raise _error(name, got=f"{evaluations / 3:g} evaluations of the network", expected=expected)
    if not torch.equal(images, repeated):
        raise _error(
            name, got="unequal images from equal noise", expected="equal images, by noise from `context.noise`"
        )
    if not torch.allclose(images[:1], single, rtol=SAME, atol=SAME):
        raise _error(name, got="an image that depends on its batch", expected="dependence on its noise only")
    mean, deviation = float(images.mean()), float(images.std())
    if abs(mean - MEAN) > WITHIN * MEAN or abs(deviation - DEVIATION) > WITHIN * DEVIATION:
        got = f"mean {mean:.3f} and deviation {deviation:.3f} after {STEPS} steps"
        raise _error(name, got=got, expected=f"{MEAN} and {DEVIATION}, within {WITHIN:.0%}, as in the data")


def _error(name: object, *, got: object, expected: object) -> UserError:
    return plugins.fault(f"sampler {name} fails validation on normal data", got=got, expected=expected)
