"""Tests of training objectives against float64 formulas, diffusers schedulers and distributions in closed form."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dithc.config import training
from dithc.diffusion import Objective, Schedule, training_loss

SCHEDULE = Schedule.linear()
T = torch.tensor([0, 1, 57, 400, 998, 999])
LAST_DRAW = 1 - 2.0**-53


def objective(**settings: object) -> Objective:
    return Objective.of(training.ObjectiveConfig.model_validate(settings))


def images(num: int = len(T), *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x0, noise = torch.randn(2, num, 3, 4, 4, generator=generator, dtype=dtype)
    return x0, noise


def losses(kind: Objective, output: Tensor, t: Tensor = T) -> dict[str, Tensor]:
    x0, noise = images(len(t), dtype=torch.float32)
    return training_loss(output, objective=kind, x0=x0, x_t=kind.noisy(x0, t, noise), t=t, noise=noise)


@pytest.mark.parametrize("prediction", ["noise", "flow"])
def test_noise_is_recovered_from_the_prediction_target(prediction: str) -> None:
    kind, (x0, noise) = objective(prediction_type=prediction), images()
    t = T if prediction != "flow" else T.float()
    x_t = kind.noisy(x0, t, noise)
    torch.testing.assert_close(kind.noise(kind.target(x0, t, noise), x_t, t), noise)


@pytest.mark.parametrize("prediction", ["noise", "flow"])
def test_clean_image_is_recovered_from_the_target_and_back(prediction: str) -> None:
    kind, (x0, noise) = objective(prediction_type=prediction), images()
    t = T if prediction != "flow" else torch.tensor([1.0, 57.0, 400.0, 998.5, 999.0, 1000.0])
    signal, level = (part.reshape(-1, 1, 1, 1) for part in kind.signal_and_noise(t))
    x_t = kind.noisy(x0, t, noise)
    torch.testing.assert_close(signal * x0 + level * noise, x_t)
    target = kind.target(x0, t, noise)
    torch.testing.assert_close(kind.clean(target, x_t, t), x0)
    torch.testing.assert_close(kind.output_of(x0, x_t, t), target)


def test_sampled_noise_prediction_is_unchanged_bitwise() -> None:
    kind, (x, _) = objective(), images(dtype=torch.float32)
    output = torch.cat([x, 2 * x], dim=1)
    assert torch.equal(kind.sampled(lambda x, t: output)(x, T), output)


def test_velocity_is_the_slope_of_the_path_from_image_to_noise() -> None:
    kind, (x0, noise) = objective(prediction_type="flow"), images(3)
    start, end = torch.zeros(3), torch.full((3,), 1000.0)
    assert torch.equal(kind.noisy(x0, start, noise), x0)
    assert torch.equal(kind.noisy(x0, end, noise), noise)
    t = torch.tensor([0.5, 250.25, 990.0])
    slope = (kind.noisy(x0, t + 1, noise) - kind.noisy(x0, t, noise)) * 1000
    torch.testing.assert_close(kind.target(x0, t, noise), slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prediction", ["noise", "flow"])
def test_loss_is_the_mean_squared_error_of_the_target(prediction: str) -> None:
    kind, (x0, noise) = objective(prediction_type=prediction), images(dtype=torch.float32)
    t = T if prediction != "flow" else T.float()
    found = losses(kind, kind.target(x0, t, noise) + 0.5, t)
    torch.testing.assert_close(found["loss"], torch.full((len(T),), 0.25))
    assert torch.equal(found["loss"], found["mse"])
    assert not found["vb"].any()


def test_bound_trains_only_the_variance() -> None:
    x0, noise = images(dtype=torch.float32)
    raw = torch.rand(x0.shape, generator=torch.Generator().manual_seed(7)) * 2 - 1
    output = torch.cat([noise + 0.1 * x0.roll(1, 0), raw], dim=1).requires_grad_()
    losses(objective(), output)["vb"].sum().backward()
    assert output.grad is not None
    assert not output.grad[:, :3].any()
    assert output.grad[:, 3:].any(dim=(2, 3)).all()
    assert output.grad.isfinite().all()


def test_uniform_times_equal_the_scaled_draws() -> None:
    draws = np.random.default_rng(0).random(4000)
    assert np.array_equal(objective().times(draws), (draws * 1000).astype(np.int64))
    flow = objective(prediction_type="flow").times(draws)
    assert flow.dtype == np.float32
    assert np.array_equal(flow, (1000 * draws).astype(np.float32))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-0.4, 1.0), (1.5, 0.3)])
def test_logit_normal_times_are_quantiles_of_their_distribution(mean: float, std: float) -> None:
    settings = {"timestep_sampling": "logit-normal", "logit_mean": mean, "logit_std": std}
    draws = np.concatenate([[2.0**-40, 0.5, 0.999999], np.random.default_rng(1).random(3000)])
    normal = NormalDist(mean, std)
    exact = [1 / (1 + math.exp(-normal.inv_cdf(draw))) for draw in draws]
    flow = objective(prediction_type="flow", **settings).times(draws)
    np.testing.assert_allclose(flow, 1000 * np.array(exact), rtol=1e-6)
    logits = np.log(flow[3:] / (1000 - flow[3:].astype(np.float64)))
    assert stats.kstest(logits, stats.norm(mean, std).cdf).pvalue > 0.01
    steps = objective(**settings).times(draws)
    assert steps.dtype == np.int64
    distance = 1000 * np.array(exact) - steps
    assert ((distance > -1e-9) & (distance < 1 + 1e-9)).all()


@pytest.mark.parametrize("prediction", ["noise", "flow"])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (20.0, 0.01), (-20.0, 20.0), (20.0, 20.0)])
def test_logit_normal_times_are_finite_sorted_and_in_range(prediction: str, mean: float, std: float) -> None:
    kind = objective(prediction_type=prediction, timestep_sampling="logit-normal", logit_mean=mean, logit_std=std)
    times = kind.times(np.array([0.0, 2.0**-53, 0.5, LAST_DRAW]))
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] <= (1000 if prediction == "flow" else 999)


def test_times_do_not_depend_on_neighboring_draws() -> None:
    draws = np.random.default_rng(3).random(101)
    for prediction in ("noise", "flow"):
        kind = objective(prediction_type=prediction, timestep_sampling="logit-normal", logit_mean=-0.3)
        separate = np.concatenate([kind.times(draws[index : index + 1]) for index in range(len(draws))])
        assert np.array_equal(kind.times(draws), separate)
