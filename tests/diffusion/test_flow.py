"""Tests of flow samplers on data with a known velocity, and against the schedulers of diffusers."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import sample_flow

SHAPE = (2, 4, 4)
MEAN, STD = 1.5, 0.5
START = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def best_velocity(x: Tensor, timesteps: Tensor) -> Tensor:
    """Return the expected noise - image in x for data of N(MEAN, STD^2), with constant distances in deviations."""
    t = timesteps.to(x.dtype).reshape(-1, 1, 1, 1) / 1000
    variance = (1 - t) ** 2 * STD**2 + t**2
    return (t - (1 - t) * STD**2) / variance * (x - (1 - t) * MEAN) - MEAN


def draw(kind: str, steps: int, *, velocity: object = best_velocity, start: Tensor = START, **given: object) -> Tensor:
    arguments = {"velocity": velocity, "noise": lambda step: start, **given}
    return sample_flow(kind, steps=steps, shape=SHAPE, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "order", "evaluations"),
    [("euler", 1, (40, 80, 160)), ("heun", 2, (40, 80, 160)), ("heun", 2, (39, 79, 159))],
)
def test_error_falls_with_the_order_of_the_sampler(kind: str, order: int, evaluations: Sequence[int]) -> None:
    exact = MEAN + STD * START
    errors = [(draw(kind, steps) - exact).abs().max().item() for steps in evaluations]
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(2**order, rel=0.12)


def test_euler_steps_match_diffusers() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25])
    x = START.float()
    for t in scheduler.timesteps:
        x = scheduler.step(best_velocity(x, t.reshape(1)), t, x).prev_sample
    torch.testing.assert_close(draw("euler", 4, start=START.float()), x, rtol=1e-5, atol=1e-5)


def test_diffusers_flow_scheduler_reaches_the_same_images() -> None:
    """Sample as documented for exported networks; the scheduler rounds times to integer timesteps."""
    from diffusers import DPMSolverMultistepScheduler

    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    scheduler.set_timesteps(100)
    x = START.float()
    for t in scheduler.timesteps:
        x = scheduler.step(best_velocity(x, t.reshape(1)), t, scheduler.scale_model_input(x, t)).prev_sample
    torch.testing.assert_close(draw("heun", 100, start=START.float()), x, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("euler", 4, [1000, 750, 500, 250]),
        ("euler", 1, [1000]),
        ("heun", 1, [1000]),
        ("heun", 2, [1000, 0]),
        ("heun", 3, [1000, 500, 500]),
        ("heun", 4, [1000, 500, 500, 0]),
    ],
)
def test_every_requested_evaluation_runs_and_is_reported(kind: str, steps: int, expected: list[int]) -> None:
    visited: list[float] = []
    progress: list[tuple[int, int]] = []

    def velocity(x: Tensor, timesteps: Tensor) -> Tensor:
        assert timesteps.shape == (len(START),)
        assert timesteps.dtype == torch.float32
        visited.append(timesteps[0].item())
        return best_velocity(x, timesteps)

    draw(kind, steps, velocity=velocity, on_step=lambda done, total: progress.append((done, total)))
    assert visited == expected
    assert progress == [(done + 1, steps) for done in range(steps)]


@pytest.mark.parametrize("kind", ["euler", "heun"])
def test_image_depends_on_the_seed_and_not_on_the_batch(kind: str) -> None:
    def images(seeds: Sequence[int]) -> Tensor:
        noise = [torch.Generator().manual_seed(seed) for seed in seeds]
        return sample_flow(kind, velocity=best_velocity, steps=5, shape=SHAPE, noise=noise)

    batch = images(range(3))
    assert batch.dtype == torch.float32
    for seed in range(3):
        torch.testing.assert_close(images([seed])[0], batch[seed])
    assert not torch.allclose(batch[0], batch[1])


@pytest.mark.parametrize("steps", [1, 4, 5])
@pytest.mark.parametrize("kind", ["euler", "heun"])
def test_clip_bounds_the_image_and_preserves_values_in_range(kind: str, steps: int) -> None:
    assert draw(kind, steps, clip=1.0).abs().max().item() <= 1.0
    torch.testing.assert_close(draw(kind, steps, clip=100.0), draw(kind, steps))


@pytest.mark.parametrize(("kind", "steps", "evaluated"), [("euler", 2, [1000, 300]), ("heun", 3, [1000, 300, 300])])
def test_given_times_are_the_interval_starts(kind: str, steps: int, evaluated: list[int]) -> None:
    visited: list[float] = []

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        visited.append(float(t[0]))
        return t.reshape(-1, 1, 1, 1).to(x.dtype) / 1000 + torch.zeros_like(x)

    displacement = START - draw(kind, steps, velocity=velocity, times=[1000, 300])
    assert visited == evaluated
    by_hand = {"euler": 0.7 * 1 + 0.3 * 0.3, "heun": 0.7 * (1 + 0.3) / 2 + 0.3 * 0.3}[kind]
    torch.testing.assert_close(displacement, torch.full_like(displacement, by_hand))


@pytest.mark.parametrize("times", [[1000], [1000, 500, 200], [900, 500], [1000, 0], [1000, 1000]])
def test_invalid_interval_times_are_rejected(times: list[int]) -> None:
    with pytest.raises(UserError, match=r"start times of the intervals[\s\S]*2, falling from 1000 and above 0"):
        draw("heun", 4, times=times)


def test_unknown_sampler_zero_steps_and_wrong_channels_are_rejected() -> None:
    with pytest.raises(UserError, match="euler or heun"):
        draw("ddim", 4)
    with pytest.raises(UserError, match="1 or more"):
        draw("euler", 0)
    with pytest.raises(UserError, match=r"channels of the model's output[\s\S]*without learned sigma"):
        draw("euler", 4, velocity=lambda x, t: torch.cat([x, x], dim=1))
