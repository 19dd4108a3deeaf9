"""Tests of the schedule's tables and of respacing."""

import pytest
import torch

from dithc.core.logging import UserError
from dithc.diffusion import Schedule


def test_linear_betas_run_from_1e_4_to_2e_2() -> None:
    betas = Schedule.linear().betas
    assert betas.dtype == torch.float64
    assert (len(betas), betas[0].item(), betas[-1].item()) == (1000, pytest.approx(1e-4), pytest.approx(2e-2))
    torch.testing.assert_close(betas.diff(), torch.full((999,), (2e-2 - 1e-4) / 999, dtype=torch.float64))


@pytest.mark.parametrize("steps", [2, 7, 50, 250, 999, 1000])
def test_respaced_timesteps_are_an_even_subset_from_first_to_last(steps: int) -> None:
    full = Schedule.linear()
    respaced = full.respaced(steps)
    assert len(respaced) == steps
    assert (respaced.timesteps[0].item(), respaced.timesteps[-1].item()) == (0, 999)
    strides = respaced.timesteps.diff()
    assert strides.min() >= 1
    assert strides.max() - strides.min() <= 1
    assert torch.equal(respaced.alpha_bar, full.alpha_bar[respaced.timesteps])
    torch.testing.assert_close(torch.cumprod(1 - respaced.betas, 0), respaced.alpha_bar, rtol=1e-9, atol=0)


@pytest.mark.parametrize("steps", [2, 10, 20, 100, 999, 1000])
def test_snr_spacing_selects_distinct_timesteps_from_first_to_last(steps: int) -> None:
    respaced = Schedule.linear().respaced(steps, spacing="snr")
    assert len(respaced) == steps
    assert (respaced.timesteps[0].item(), respaced.timesteps[-1].item()) == (0, 999)
    assert respaced.timesteps.diff().min() >= 1
    if steps == 10:
        strides = respaced.half_log_snr.diff()
        assert strides.max() / strides.min() > 0.6  # both negative


def test_one_step_starts_from_the_noisiest_timestep() -> None:
    single = Schedule.linear().respaced(1)
    assert single.timesteps.tolist() == [999]
    assert single.log_variance_small.isfinite().all()


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_invalid_step_counts_are_rejected(steps: int) -> None:
    with pytest.raises(UserError, match="1 to 1000"):
        Schedule.linear().respaced(steps)


def test_predicting_the_clean_image_inverts_the_noising() -> None:
    schedule, t = Schedule.linear(), torch.tensor([0, 500, 999])
    x0, noise = torch.randn(2, 3, 4, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(schedule.predict_x0(schedule.q_sample(x0, t, noise), t, noise), x0)


def test_posterior_equals_bayes_rule_on_gaussians() -> None:
    schedule, step = Schedule.linear().respaced(50), 20
    previous, current = schedule.alpha_bar_before[step], schedule.alpha_bar[step]
    keep = current / previous
    precision = keep / (1 - keep) + 1 / (1 - previous)
    x0, x = torch.tensor([[0.7]], dtype=torch.float64), torch.tensor([[-0.3]], dtype=torch.float64)
    expected = (keep.sqrt() * x / (1 - keep) + previous.sqrt() * x0 / (1 - previous)) / precision
    torch.testing.assert_close(schedule.posterior_mean(x0, x, torch.tensor([step])), expected)
    assert schedule.log_variance_small[step].exp().item() == pytest.approx(1 / precision.item())


@pytest.mark.parametrize("steps", [10, 1000])
def test_learned_variance_interpolates_between_bounds(steps: int) -> None:
    schedule = Schedule.linear().respaced(steps)
    t = torch.arange(steps)
    least, middle, most = (
        schedule.learned_log_variance(torch.full((steps, 1), raw, dtype=torch.float64), t)[:, 0] for raw in (-1, 0, 1)
    )
    torch.testing.assert_close(least, schedule.log_variance_small)
    torch.testing.assert_close(most, schedule.betas.log())
    assert (least[1:] <= most[1:]).all()
    torch.testing.assert_close(middle, (least + most) / 2)
