"""Tests of samplers on data with a known optimal denoiser, and of seeds, steps and invalid input."""

import math

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import SAMPLERS, Schedule, sample

SCHEDULE = Schedule.linear()
SHAPE = (4, 4, 4)
KINDS = list(SAMPLERS)
ALPHA_SIGMA = SCHEDULE.alpha_bar.sqrt(), (1 - SCHEDULE.alpha_bar).sqrt()
MEAN, STD = 1.5, 0.5


def _best_noise(x: Tensor, t: Tensor) -> Tensor:
    """Return the expected noise in x for data of N(MEAN, STD^2), the output of an optimal denoiser."""
    alpha_bar = SCHEDULE.alpha_bar[t].float().reshape(-1, 1, 1, 1)
    variance = alpha_bar * STD**2 + 1 - alpha_bar
    return (1 - alpha_bar).sqrt() * (x - alpha_bar.sqrt() * MEAN) / variance


def _with_variance(x: Tensor, t: Tensor) -> Tensor:
    """Return the same with learned sigma, at a variance between the bounds."""
    return torch.cat([_best_noise(x, t), torch.full_like(x, -0.4)], dim=1)


def _generators(num: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 + first + index) for index in range(num)]


def _draw(kind: str, steps: int, num: int = 256, denoise: object = _best_noise, **given: object) -> Tensor:
    arguments = {"schedule": SCHEDULE, "shape": SHAPE, "noise": _generators(num), **given}
    return sample(kind, denoise=denoise, steps=steps, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "steps", "tolerance"),
    [("ddpm", 250, 0.04), ("ddim", 50, 0.04), ("dpm-solver", 20, 0.03), ("unipc", 10, 0.03)],
)
def test_optimal_denoiser_reproduces_the_mean_and_spread_of_the_data(kind: str, steps: int, tolerance: float) -> None:
    x = _draw(kind, steps)
    assert x.mean().item() == pytest.approx(MEAN, abs=tolerance)
    assert x.std().item() == pytest.approx(STD, abs=tolerance)


@pytest.mark.parametrize("denoise", [_best_noise, _with_variance])
@pytest.mark.parametrize("kind", KINDS)
def test_image_depends_on_the_seed_and_not_on_the_batch(kind: str, denoise: object) -> None:
    batch = _draw(kind, 10, num=4, denoise=denoise)
    for index in range(4):
        single = _draw(kind, 10, denoise=denoise, noise=_generators(1, first=index))
        torch.testing.assert_close(single[0], batch[index], atol=1e-6, rtol=0)
    assert not torch.allclose(batch[0], batch[1])


def test_ddim_and_the_solvers_use_no_noise_after_the_start() -> None:
    start = torch.randn(2, *SHAPE)

    def only_start(step: int) -> Tensor:
        assert step == 0
        return start

    for kind in ("ddim", "dpm-solver", "unipc"):
        assert torch.equal(_draw(kind, 10, noise=only_start), _draw(kind, 10, noise=only_start))


def test_ddpm_draws_noise_in_step_order_and_not_after_the_last_step() -> None:
    draws: list[int] = []

    def noise(step: int) -> Tensor:
        draws.append(step)
        return torch.randn(1, *SHAPE)

    _draw("ddpm", 5, noise=noise)
    assert draws == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_denoiser_receives_respaced_timesteps_from_last_to_first(kind: str, steps: int) -> None:
    visited: list[int] = []

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        assert t.shape == (2,)
        visited.append(int(t[0]))
        return _best_noise(x, t)

    x = _draw(kind, steps, num=2, denoise=denoise)
    assert x.isfinite().all()
    assert visited == SCHEDULE.respaced(steps, spacing=SAMPLERS[kind].spacing).timesteps.flip(0).tolist()


@pytest.mark.parametrize("raw", [-1.0, 1.0])
def test_learned_variance_sets_the_noise_of_a_ddpm_step(raw: float) -> None:
    start = torch.zeros(1, *SHAPE)

    def draw(size: float) -> Tensor:
        def denoise(x: Tensor, t: Tensor) -> Tensor:  # the second and last step only rescales
            return torch.cat([torch.zeros_like(x), torch.full_like(x, raw)], dim=1)

        return _draw("ddpm", 2, denoise=denoise, noise=lambda step: start if step == 0 else start + size)

    schedule = SCHEDULE.respaced(2)
    log_variance = schedule.log_variance_small[1] if raw < 0 else schedule.betas[1].log()
    expected = math.exp(0.5 * log_variance.item()) / math.sqrt(schedule.alpha_bar[0].item())
    assert (draw(1.0) - draw(0.0)).mean().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_clip_bounds_the_image(kind: str) -> None:
    assert _draw(kind, 10, num=8, clip=1.0).abs().max().item() <= 1 + 1e-5


def test_every_finished_step_is_reported() -> None:
    progress: list[tuple[int, int]] = []
    _draw("ddim", 4, num=1, on_step=lambda done, total: progress.append((done, total)))
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_sampling_keeps_no_graph() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert not _draw("ddim", 3, num=1, denoise=lambda x, t: _best_noise(x, t) * weight).requires_grad


def test_unknown_sampler_and_wrong_channels_are_rejected() -> None:
    with pytest.raises(UserError, match="ddpm or ddim or dpm-solver"):
        _draw("euler", 10)
    with pytest.raises(UserError, match="channels of the model's output"):
        _draw("ddpm", 10, denoise=lambda x, t: x[:, :3])
