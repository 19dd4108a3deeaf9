"""A look at a sampler that is not built in before its first image: does it sample a distribution that is known in closed form?

The data are independent normal numbers of mean m and deviation s. Their noise and velocity are known at any time, and what comes
out has to have m and s again. Legend: N images, C channels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dithc import extensions
from dithc.diffusion.noise import Noise
from dithc.diffusion.schedule import Schedule, pick
from dithc.log import UserError

MEAN, DEVIATION = 0.5, 0.5
STEPS, IMAGES, SHAPE = 100, 8, (4, 16, 16)
WITHIN = 0.1  # of m and s: of our samplers those of first order miss s by 7 % at most in so many steps, and chance both by 2 %
SAME = 1e-4  # between an image alone and beside others: rounding alone

Predict = Callable[[Tensor, Tensor], Tensor]


def exact_noise(schedule: Schedule) -> Predict:
    """The expected noise in x (N, C, h, w) at timesteps (N) of a schedule."""

    def noise(x: Tensor, t: Tensor) -> Tensor:
        kept = pick(schedule.alpha_bar, t, x)
        return (1 - kept).sqrt() * (x - kept.sqrt() * MEAN) / (kept * DEVIATION**2 + 1 - kept)

    return noise


def exact_velocity(x: Tensor, t: Tensor) -> Tensor:
    """The expected noise - image at x (N, C, h, w) and 1000 times the time (N)."""
    time = (t / 1000.0).to(x.dtype).reshape(-1, 1, 1, 1)
    spread = (x - (1 - time) * MEAN) / ((1 - time) ** 2 * DEVIATION**2 + time**2)
    return time * spread - (MEAN + (1 - time) * DEVIATION**2 * spread)


@torch.no_grad()
def try_sampler(named: object, run: Callable[[Predict, Noise, int], Any], predict: Predict) -> None:
    """Try a sampler, `run` with network, noise and steps, for a network that returns `predict`; messages name `named`.

    Raises:
        UserError: It fails, returns no images, evaluates more or fewer times than steps, does not repeat, mixes images of a
            batch, or misses the distribution.
    """
    evaluations = 0

    def counted(x: Tensor, t: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return predict(x, t)

    def noise_of(images: int) -> Noise:
        def draw(step: int) -> Tensor:
            drawn = (torch.Generator().manual_seed(1000 * image + step) for image in range(images))
            return torch.stack([torch.randn(SHAPE, generator=generator) for generator in drawn])  # (N, C, h, w)

        return draw

    try:
        images, again, alone = (run(counted, noise_of(count), STEPS) for count in (IMAGES, IMAGES, 1))
    except Exception as error:  # whatever code of others raises
        raise _fault(named, got=f"{type(error).__name__}: {error}", expected="images") from error
    if not isinstance(images, Tensor) or images.shape != (IMAGES, *SHAPE) or not bool(images.isfinite().all()):
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise _fault(named, got=got, expected=f"finite numbers {(IMAGES, *SHAPE)}")
    if evaluations != 3 * STEPS:
        expected = f"{STEPS}, one a step: `steps` of an evaluation is what an image costs"
        raise _fault(named, got=f"{evaluations / 3:g} evaluations of the network", expected=expected)
    if not torch.equal(images, again):
        raise _fault(named, got="other images of the same noise", expected="the same: draw from `walk.noise` alone")
    if not torch.allclose(images[:1], alone, rtol=SAME, atol=SAME):
        raise _fault(named, got="an image that depends on the others of its batch", expected="one of its noise alone")
    mean, deviation = float(images.mean()), float(images.std())
    if abs(mean - MEAN) > WITHIN * MEAN or abs(deviation - DEVIATION) > WITHIN * DEVIATION:
        got = f"mean {mean:.3f} and deviation {deviation:.3f} after {STEPS} steps"
        raise _fault(named, got=got, expected=f"{MEAN} and {DEVIATION}, within {WITHIN:.0%}: those of the data")


def _fault(named: object, *, got: object, expected: object) -> UserError:
    return extensions.fault(f"sampler {named} fails its trial on normal data", got=got, expected=expected)
