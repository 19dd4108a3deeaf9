"""Tests of the sampler trial with correct and faulty samplers, and of custom samplers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import SAMPLERS, Schedule, sample, sample_flow
from dithc.diffusion.flow import FLOW_SAMPLERS
from dithc.diffusion.sampler_check import DEVIATION, MEAN, SHAPE, exact_noise, exact_velocity, try_sampler
from tests.brought import Follow, Last

SCHEDULE = Schedule.linear()


def generators(count: int = 2) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def by(kind: Any, *, steps: int = 20) -> Tensor:
    return sample(kind, denoise=exact_noise(SCHEDULE), schedule=SCHEDULE, steps=steps, shape=SHAPE, noise=generators())


@pytest.mark.parametrize("kind", SAMPLERS)
def test_built_in_samplers_pass(kind: str) -> None:
    def run(predict: Any, noise: Any, steps: int) -> Tensor:
        return sample(kind, denoise=predict, schedule=SCHEDULE, steps=steps, shape=SHAPE, noise=noise)

    try_sampler(kind, run, exact_noise(SCHEDULE))


@pytest.mark.parametrize("kind", FLOW_SAMPLERS)
def test_built_in_samplers_of_a_flow_pass(kind: str) -> None:
    def run(predict: Any, noise: Any, steps: int) -> Tensor:
        return sample_flow(kind, velocity=predict, steps=steps, shape=SHAPE, noise=noise)

    try_sampler(kind, run, exact_velocity)


def test_exact_noise_and_velocity_are_those_of_many_draws() -> None:
    x0, noise = np.random.default_rng(0).standard_normal((2, 400_000))
    x0 = MEAN + DEVIATION * x0
    kept, at = float(SCHEDULE.alpha_bar[300]), np.array([-0.5, 0.5, 1.5])
    for x, wanted, exact, t in (
        (math.sqrt(kept) * x0 + math.sqrt(1 - kept) * noise, noise, exact_noise(SCHEDULE), 300),
        (0.6 * x0 + 0.4 * noise, noise - x0, exact_velocity, 400),
    ):
        found = exact(torch.from_numpy(at).reshape(3, 1, 1, 1), torch.full((3,), t)).flatten().numpy()
        # Given x, the velocity is the least-squares line through jointly normal draws, accurate to 0.004.
        np.testing.assert_allclose(found, np.polynomial.Polynomial.fit(x, wanted, 1)(at), atol=0.02)


@pytest.mark.slow
def test_samplers_of_ones_own_give_what_built_in_ones_of_the_same_rule_give() -> None:
    torch.testing.assert_close(by(Last(kind="last")), by("ddim"), atol=1e-5, rtol=1e-5)
    own, euler = (
        sample_flow(kind, velocity=exact_velocity, steps=7, shape=SHAPE, noise=generators())
        for kind in (Follow(kind="follow"), "euler")
    )
    assert torch.equal(own, euler)


class Spoilt(Last):
    """DDIM with one injected fault."""

    spoilt: str

    def run(self, walk: Any) -> Any:
        match self.spoilt:
            case "raises":
                raise KeyError("weights")
            case "chance":
                return super().run(walk) + 1e-3 * torch.rand(())
            case "batch":
                x = super().run(walk)
                return x - 0.1 * x.mean() + 0.05
            case "costs":
                walk.predict(walk.noise(0), 0)
            case "shape":
                return super().run(walk)[:, :1]
            case "tensor":
                return None
            case "narrow":
                return MEAN + 0.5 * (super().run(walk) - MEAN)
            case "nan":
                return super().run(walk) * float("nan")
        return super().run(walk)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ("raises", "KeyError: 'weights'"),
        ("chance", "unequal images from equal noise"),
        ("batch", "depends on its batch"),
        ("costs", "101 evaluations"),
        ("shape", r"\(8, 1, 16, 16\)"),
        ("tensor", "NoneType"),
        ("narrow", r"deviation 0\.2"),
        ("nan", "expected: finite"),
    ],
)
def test_faulty_sampler_is_refused_before_it_draws(spoilt: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"sampler spoilt spoilt {spoilt} fails its trial[\s\S]*{said}[\s\S]*fix"):
        by(Spoilt(kind="spoilt", spoilt=spoilt))
