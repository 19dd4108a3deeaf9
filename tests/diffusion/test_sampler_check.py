"""Tests of the sampler validation with correct and faulty samplers, and of custom samplers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import UserError
from dithc.diffusion import SAMPLERS, Schedule, sample, sample_flow
from dithc.diffusion.flow import FLOW_SAMPLERS
from dithc.diffusion.sampler_check import DEVIATION, MEAN, SHAPE, exact_noise, exact_velocity, validate_sampler
from tests.plugin_packages import DdimSampler, FlowSampler

SCHEDULE = Schedule.linear()


def generators(count: int = 2) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def by(kind: Any, *, steps: int = 20) -> Tensor:
    return sample(kind, denoise=exact_noise(SCHEDULE), schedule=SCHEDULE, steps=steps, shape=SHAPE, noise=generators())


def test_every_sampler_of_the_configuration_is_implemented() -> None:
    is_flow = dict.fromkeys(SAMPLERS, False) | dict.fromkeys(FLOW_SAMPLERS, True)
    assert {name: spec.is_flow for name, spec in evaluations.SAMPLER_SPECS.items()} == is_flow


@pytest.mark.parametrize("kind", SAMPLERS)
def test_builtin_samplers_pass_validation(kind: str) -> None:
    def run(predict: Any, noise: Any, steps: int) -> Tensor:
        return sample(kind, denoise=predict, schedule=SCHEDULE, steps=steps, shape=SHAPE, noise=noise)

    validate_sampler(kind, run, exact_noise(SCHEDULE))


@pytest.mark.parametrize("kind", FLOW_SAMPLERS)
def test_builtin_flow_samplers_pass_validation(kind: str) -> None:
    def run(predict: Any, noise: Any, steps: int) -> Tensor:
        return sample_flow(kind, velocity=predict, steps=steps, shape=SHAPE, noise=noise)

    validate_sampler(kind, run, exact_velocity)


def test_exact_noise_and_velocity_match_random_draws() -> None:
    x0, noise = np.random.default_rng(0).standard_normal((2, 400_000))
    x0 = MEAN + DEVIATION * x0
    alpha_bar, points = float(SCHEDULE.alpha_bar[300]), np.array([-0.5, 0.5, 1.5])
    for x, target, exact, t in (
        (math.sqrt(alpha_bar) * x0 + math.sqrt(1 - alpha_bar) * noise, noise, exact_noise(SCHEDULE), 300),
        (0.6 * x0 + 0.4 * noise, noise - x0, exact_velocity, 400),
    ):
        found = exact(torch.from_numpy(points).reshape(3, 1, 1, 1), torch.full((3,), t)).flatten().numpy()
        # Given x, the velocity is the least-squares line through jointly normal draws, accurate to 0.004.
        np.testing.assert_allclose(found, np.polynomial.Polynomial.fit(x, target, 1)(points), atol=0.02)


@pytest.mark.slow
def test_custom_samplers_match_builtin_samplers_of_the_same_rule() -> None:
    torch.testing.assert_close(by(DdimSampler(kind="last")), by("ddim"), atol=1e-5, rtol=1e-5)
    custom, euler = (
        sample_flow(kind, velocity=exact_velocity, steps=7, shape=SHAPE, noise=generators())
        for kind in (FlowSampler(kind="follow"), "euler")
    )
    assert torch.equal(custom, euler)


class Faulty(DdimSampler):
    """DDIM with one injected fault."""

    defect: str

    def run(self, context: Any) -> Any:
        match self.defect:
            case "raises":
                raise KeyError("weights")
            case "chance":
                return super().run(context) + 1e-3 * torch.rand(())
            case "batch":
                x = super().run(context)
                return x - 0.1 * x.mean() + 0.05
            case "costs":
                context.predict(context.noise(0), 0)
            case "shape":
                return super().run(context)[:, :1]
            case "tensor":
                return None
            case "narrow":
                return MEAN + 0.5 * (super().run(context) - MEAN)
            case "nan":
                return super().run(context) * float("nan")
        return super().run(context)


@pytest.mark.parametrize(
    ("defect", "text"),
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
def test_faulty_sampler_is_rejected_by_validation(defect: str, text: str) -> None:
    with pytest.raises(UserError, match=rf"sampler faulty defect {defect} fails validation[\s\S]*{text}[\s\S]*fix"):
        by(Faulty(kind="faulty", defect=defect))
