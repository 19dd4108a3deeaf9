"""Tests of multistep solvers on paths in closed form, and against the same solvers of diffusers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import Schedule, sample
from dithc.diffusion.samplers import slope_weights

SCHEDULE = Schedule.linear()
SHAPE = (4, 2, 2)
SOLVERS = ["dpm-solver", "unipc"]
MEAN, STD = 1.5, 0.5
CENTRES = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CENTRE_STD = 0.5


class Gaussian:
    """Optimal denoiser of N(MEAN, STD^2), with the end point of every path."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        alpha_bar = self.schedule.alpha_bar[t].to(x).reshape(-1, 1, 1, 1)
        return (1 - alpha_bar).sqrt() * (x - alpha_bar.sqrt() * MEAN) / (alpha_bar * STD**2 + 1 - alpha_bar)

    def end(self, start: Tensor) -> Tensor:
        """Return the clean image at the first timestep on the exact path from `start` at the last timestep."""
        first, last = self.schedule.alpha_bar[0], self.schedule.alpha_bar[-1]
        spread = ((first * STD**2 + 1 - first) / (last * STD**2 + 1 - last)).sqrt()
        x = first.sqrt() * MEAN + spread * (start - last.sqrt() * MEAN)
        zeros = torch.zeros(len(x), dtype=torch.long)
        return self.schedule.predict_x0(x, zeros, self(x, zeros))


def mixture(x: Tensor, t: Tensor) -> Tensor:
    """Optimal denoiser of five equally likely Gaussians of CENTRE_STD around CENTRES."""
    alpha_bar = SCHEDULE.alpha_bar[t].to(x).reshape(-1, 1, 1, 1)
    variance = alpha_bar * CENTRE_STD**2 + 1 - alpha_bar
    distance = x[:, None] - alpha_bar[:, None].sqrt() * CENTRES.to(x)  # (N, 5, C, h, w)
    share = torch.softmax(-(distance**2).flatten(2).sum(2) / (2 * variance.reshape(-1, 1)), dim=1)  # (N, 5)
    return (1 - alpha_bar).sqrt() * torch.einsum("nk,nkchw->nchw", share, distance) / variance


def draw(kind: str, steps: int, *, start: Tensor, denoise: object = mixture, **given: object) -> Tensor:
    arguments = {"schedule": SCHEDULE, "shape": SHAPE, "noise": lambda _: start, **given}
    return sample(kind, denoise=denoise, steps=steps, **arguments)  # type: ignore[arg-type]


def noise(num: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("stride", [0.005, 0.3, 2.0, 12.0])
@pytest.mark.parametrize("offsets", [(-0.7, 1.0), (-1.3, -2.1), (-0.5, -3.0, 1.0)])
def test_slope_weights_reproduce_the_mean_of_polynomials(stride: float, offsets: tuple[float, ...]) -> None:
    nodes, quadrature = np.polynomial.legendre.leggauss(60)
    r = (nodes + 1) / 2
    weight = quadrature * np.exp((r - 1) * stride)
    polynomial = np.polynomial.Polynomial([0.3, -1.1, 0.7, 0.4][: len(offsets) + 1])
    expected = (weight * polynomial(r)).sum() / weight.sum()
    slopes = [(polynomial(offset) - polynomial(0)) / offset for offset in offsets]
    weights = slope_weights(offsets, stride=stride)
    assert polynomial(0) + np.dot(weights, slopes) == pytest.approx(expected, rel=1e-7)


def test_single_slope_weight_is_half_for_any_stride() -> None:
    assert slope_weights([], stride=1.0) == []
    assert slope_weights([-2.0], stride=1.0) == slope_weights([1.0], stride=5.0) == [0.5]


RATES = {("dpm-solver", 1): 1, ("dpm-solver", 2): 2, ("dpm-solver", 3): 3, ("unipc", 1): 2, ("unipc", 2): 3}


@pytest.mark.parametrize(("kind", "order"), RATES)
def test_convergence_rate_equals_the_order_plus_one_if_corrected(kind: str, order: int) -> None:
    betas = torch.linspace(5e-6, 1e-3, 20_000, dtype=torch.float64)  # fine, so that timesteps hardly move the levels
    denoise = Gaussian(Schedule(torch.cumprod(1 - betas, dim=0), torch.arange(20_000)))
    start = noise(8)
    exact = denoise.end(start)
    coarse, fine = (
        draw(kind, steps, start=start, denoise=denoise, schedule=denoise.schedule, order=order) for steps in (40, 80)
    )
    rate = math.log2((coarse - exact).abs().max().item() / (fine - exact).abs().max().item())
    assert rate > RATES[kind, order] - 0.2
    # Third order shows more: the only first-order step is the first, in noise, and nearly exact on this path.
    assert order == 3 or rate < RATES[kind, order] + 0.2


def diffusers_draw(scheduler: Any, steps: int, start: Tensor) -> Tensor:
    """Sample with a diffusers scheduler at the same timesteps and levels."""
    visited = SCHEDULE.respaced(steps, spacing="snr")
    scheduler.set_timesteps(steps)
    scheduler.sigmas = torch.cat([(1 / visited.alpha_bar - 1).sqrt().flip(0), torch.zeros(1, dtype=torch.float64)])
    scheduler.timesteps = visited.timesteps.flip(0)
    x = start
    for t in scheduler.timesteps:
        x = scheduler.step(mixture(x, t.expand(len(x))), t, x).prev_sample
    return x


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kind", SOLVERS)
def test_solvers_match_diffusers_at_equal_timesteps(kind: str, order: int, steps: int) -> None:
    from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

    start = noise(4)
    betas = {"beta_schedule": "linear", "beta_start": 1e-4, "beta_end": 2e-2, "final_sigmas_type": "zero"}
    if kind == "dpm-solver" and order < 3:
        other = DPMSolverMultistepScheduler(solver_order=order, **betas)
    else:
        # The third order of diffusers' DPMSolverMultistepScheduler halves the second derivative and is therefore of
        # second order. The predictor of UniPC is exact.
        uncorrected = list(range(steps)) if kind == "dpm-solver" else []
        other = UniPCMultistepScheduler(solver_order=order, disable_corrector=uncorrected, **betas)
    torch.testing.assert_close(
        draw(kind, steps, start=start, order=order), diffusers_draw(other, steps, start), atol=1e-5, rtol=1e-5
    )


def test_unsupported_orders_are_rejected() -> None:
    start = noise(1)
    with pytest.raises(UserError, match=r"4 with unipc[\s\S]*1 or 2 or 3"):
        draw("unipc", 5, start=start, order=4)
    with pytest.raises(UserError, match=r"2 with ddim[\s\S]*none with ddim"):
        draw("ddim", 5, start=start, order=2)


def test_given_times_replace_the_default_timesteps() -> None:
    visited: list[int] = []
    start, times = noise(2), [999, 700, 320, 40]

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        visited.append(int(t[0]))
        return mixture(x, t)

    chosen = draw("unipc", 4, start=start, denoise=denoise, times=times)
    assert visited == times
    spread = SCHEDULE.respaced(4, spacing="snr").timesteps.flip(0).tolist()
    assert torch.equal(draw("unipc", 4, start=start, times=spread), draw("unipc", 4, start=start))
    assert not torch.equal(chosen, draw("unipc", 4, start=start))


@pytest.mark.parametrize("times", [[999, 5], [999, 5, 5], [5, 6, 7], [999, 3, -1], [1000, 3, 0]])
def test_times_of_wrong_count_order_or_range_are_rejected(times: list[int]) -> None:
    with pytest.raises(UserError, match="timesteps to visit"):
        draw("unipc", 3, start=noise(1), times=times)
