"""Tests of posterior sampling against float64 linear algebra for normal data, and for a mixture of two components."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError
from dithc.diffusion import Objective, sample, sample_flow
from dithc.diffusion.cosines import cosines, inverse_cosines
from dithc.diffusion.restoration import (
    BandGroups,
    LinearOperator,
    Observation,
    RadialCovariance,
    Resampling,
    Selection,
    conditional_mean,
    measure_errors,
    posterior_denoiser,
    restoration_times,
)

SHAPE = (2, 8, 8)
SIZE = math.prod(SHAPE)
IMAGES = torch.eye(SIZE, dtype=torch.float64).reshape(-1, *SHAPE)
MEAN, NOISE = 0.2, 0.05
SAMPLERS = {"euler": 64, "heun": 64, "ddim": 64, "dpm-solver": 40}


def prior() -> RadialCovariance:
    """Return correlated bands with a smooth and a rough component, without correlation from four pixels on."""
    lags = torch.arange(4, dtype=torch.float64)
    radial = torch.stack([0.3 * torch.exp(-((lags / 1.5) ** 2)), 0.06 * torch.exp(-lags)]) * (1 - lags / 4) ** 4
    basis = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
    offset = torch.tensor([0.05, 0.02], dtype=torch.float64)
    return RadialCovariance(torch.full((2,), MEAN, dtype=torch.float64), basis, radial * (1 + lags), offset)


def operators() -> dict[str, LinearOperator]:
    gap = torch.ones(SHAPE, dtype=torch.bool)
    gap[:, 2:6, 3:] = False
    band = torch.zeros(SHAPE, dtype=torch.bool)
    band[1] = True
    return {
        "mask": Selection(gap),
        "band": Selection(band),
        "mean": Resampling(SHAPE, 2),
        "blur": Resampling(SHAPE, 2, mtf=0.3),
        "groups": BandGroups(SHAPE, {(1,): Selection(gap[:1]), (0,): Resampling((1, 8, 8), 4, mtf=0.2)}),
    }


OPERATORS = operators()


class Problem:
    """Observation of an image of the prior, with the exact posterior mean and covariance."""

    def __init__(self, operator: LinearOperator) -> None:
        generator = torch.Generator().manual_seed(1)
        self.covariance = prior()
        spectrum = self.covariance.spectrum(SHAPE[1:])
        self.of_data = inverse_cosines(self.covariance.multiply(cosines(IMAGES), spectrum)).flatten(1)
        matrix, deviation = operator.apply(IMAGES).T, torch.full((operator.size,), NOISE, dtype=torch.float64)
        image = MEAN + torch.linalg.cholesky(self.of_data) @ torch.randn(SIZE, generator=generator).double()
        values = matrix @ image + deviation * torch.randn(operator.size, generator=generator).double()
        self.observation = Observation(operator, values, deviation)
        gain = torch.linalg.solve(
            matrix @ self.of_data @ matrix.T + NOISE**2 * torch.eye(operator.size), matrix @ self.of_data
        ).T
        self.mean = MEAN + gain @ (values - MEAN * matrix.sum(1))
        self.variance = (self.of_data - gain @ matrix @ self.of_data).diagonal()

    def samples(
        self, sampler: str, rule: str, start: Tensor, prediction: str = "", *, images: Tensor | None = None
    ) -> Tensor:
        """Return samples; with `images`, from the covariance of the network's errors on them."""
        steps, is_flow = SAMPLERS[sampler], sampler in ("euler", "heun")
        kind = Objective.of(training.ObjectiveConfig(prediction_type=prediction or ("flow" if is_flow else "noise")))
        values, vectors = torch.linalg.eigh(self.of_data)

        def network(x: Tensor, t: Tensor) -> Tensor:
            signal, noise = (float(part[0]) for part in kind.signal_and_noise(t))
            if noise == 0:
                return -x
            shrunk = (x.flatten(1) - signal * MEAN) @ vectors * (signal * values / (signal**2 * values + noise**2))
            output = kind.output_of((MEAN + shrunk @ vectors.T).reshape(x.shape), x, t)
            return output if is_flow else torch.cat([output, output + 1], dim=1)  # a learned variance follows

        times, errors = restoration_times(kind, steps // 2 if sampler == "heun" else steps), None
        if images is not None:
            generator = torch.Generator().manual_seed(8)
            errors = measure_errors(
                network, kind, images, lambda _: torch.randn(images.shape, generator=generator).double(), times
            )
        posterior = posterior_denoiser(network, kind, self.observation, self.covariance, rule, 20, errors)
        denoise = kind.sampled(posterior)
        options = {"steps": steps, "shape": SHAPE, "noise": lambda step: start.reshape(-1, *SHAPE), "times": times}
        if kind.schedule is None:
            return sample_flow(sampler, velocity=denoise, **options).flatten(1)
        return sample(sampler, denoise=denoise, schedule=kind.schedule, **options).flatten(1)


def assert_exact(problem: Problem, found: Tensor) -> None:
    mean, total = found.mean(0), problem.variance.sum()
    variance = (found - mean).square().mean(0)
    assert (mean - problem.mean).square().sum() <= 0.05**2 * total
    assert 0.95 <= (variance.sum() / total).sqrt() <= 1.05


@pytest.mark.long  # the same without randomness follows
@pytest.mark.parametrize("rule", ["covariance", "jacobian"])
@pytest.mark.parametrize("sampler", list(SAMPLERS))
@pytest.mark.parametrize("name", list(OPERATORS))
def test_random_samples_have_the_exact_posterior_mean_and_deviation(name: str, sampler: str, rule: str) -> None:
    problem = Problem(OPERATORS[name])
    start = torch.randn(4096, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert_exact(problem, problem.samples(sampler, rule, start))


@pytest.mark.parametrize(
    ("name", "sampler", "rule", "prediction"),
    [
        ("mask", "heun", "covariance", "flow"),
        ("groups", "dpm-solver", "covariance", "noise"),
        ("mean", "heun", "jacobian", "flow"),
    ],
)
def test_orthogonal_samples_have_the_exact_posterior_moments(
    name: str, sampler: str, rule: str, prediction: str
) -> None:
    """Check the moments without chance: a linear sampler maps orthogonal starts and their negatives to exact moments."""
    problem = Problem(OPERATORS[name])
    start = (
        math.sqrt(SIZE)
        * torch.linalg.qr(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3)).double())[0]
    )
    assert_exact(problem, problem.samples(sampler, rule, torch.cat([start, -start]), prediction))


@pytest.mark.parametrize(("name", "sampler"), [("mask", "euler"), ("groups", "heun"), ("blur", "dpm-solver")])
def test_measured_errors_of_the_exact_network_give_nearly_the_exact_moments(name: str, sampler: str) -> None:
    problem, generator = Problem(OPERATORS[name]), torch.Generator().manual_seed(7)
    noise = torch.randn(512, SIZE, generator=generator, dtype=torch.float64)
    images = (MEAN + noise @ torch.linalg.cholesky(problem.of_data).T).reshape(-1, *SHAPE)
    images[::3, :, :2, 5:] = math.nan  # gaps
    start = torch.randn(1024, SIZE, generator=generator, dtype=torch.float64)
    found = problem.samples(sampler, "covariance", start, images=images)
    mean, total = found.mean(0), problem.variance.sum()
    assert (mean - problem.mean).square().sum() <= 0.1**2 * total
    assert ((found - mean).square().mean(0).sum() / total).sqrt() == pytest.approx(1, abs=0.1)


def test_images_are_independent_of_the_batch_and_of_earlier_runs() -> None:
    problem = Problem(OPERATORS["groups"])
    start = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    both = problem.samples("euler", "covariance", start)
    torch.testing.assert_close(both[1:2], problem.samples("euler", "covariance", start[1:2]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", list(OPERATORS))
def test_conditional_mean_of_normal_data_is_exact(name: str) -> None:
    problem = Problem(OPERATORS[name])
    found = conditional_mean(problem.observation, problem.covariance).flatten()
    assert (found - problem.mean).abs().max() <= 0.01 * problem.variance.mean().sqrt()


def mixture(problem: Problem, shift: float) -> tuple[Callable[[Tensor, float, float], Tensor], Tensor, Tensor]:
    """Return the exact denoiser of an equal mixture of the prior at two means, and the posterior mean and variance."""
    means = torch.stack([torch.full((SIZE,), MEAN - shift), torch.full((SIZE,), MEAN + shift)]).double()
    values, vectors = torch.linalg.eigh(problem.of_data)

    def clean(x: Tensor, signal: float, noise: float) -> Tensor:
        total = signal**2 * values + noise**2
        residual = (x.flatten(1)[:, None] - signal * means) @ vectors  # (N, 2, SIZE)
        weights = torch.softmax(-0.5 * (residual**2 / total).sum(2), dim=1)
        return (
            (weights[..., None] * (means + (residual * (signal * values / total)) @ vectors.T)).sum(1).reshape(x.shape)
        )

    operator, values_seen = problem.observation.operator, problem.observation.values
    matrix = operator.apply(IMAGES).T
    joint = matrix @ problem.of_data @ matrix.T + NOISE**2 * torch.eye(operator.size)
    residual = values_seen - means @ matrix.T  # (2, M)
    solved = torch.linalg.solve(joint, residual.T).T
    weights = torch.softmax(-0.5 * (residual * solved).sum(1), dim=0)
    centers = means + solved @ matrix @ problem.of_data
    mean = weights @ centers
    return clean, mean, problem.variance + weights @ (centers - mean) ** 2


def test_mixture_of_two_components_is_sampled_approximately() -> None:
    """Bound the error for other than normal data: the covariance rule uses one covariance for both components."""
    problem = Problem(OPERATORS["mask"])
    shift = 0.5
    clean, mean, variance = mixture(problem, shift)
    kind = Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    offset = problem.covariance.offset + shift**2 * problem.covariance.basis.sum(0) ** 2
    data = replace(problem.covariance, offset=offset)

    def network(x: Tensor, t: Tensor) -> Tensor:
        signal, noise = (float(part[0]) for part in kind.signal_and_noise(t))
        return kind.output_of(clean(x, signal, noise), x, t) if noise else -x

    start = torch.randn(160, *SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for rule in ("covariance", "jacobian"):
        denoise = posterior_denoiser(network, kind, problem.observation, data, rule)
        options = {"steps": 32, "shape": SHAPE, "noise": lambda step: start, "times": restoration_times(kind, 16)}
        found = sample_flow("heun", velocity=denoise, **options).flatten(1)
        shifted = ((found.mean(0) - mean).square().sum() / variance.sum()).sqrt()
        assert shifted <= 0.15  # chance: 0.08
        assert (found.var(0).sum() / variance.sum()).sqrt() == pytest.approx(1, abs=0.1)


def test_learned_variance_and_the_clean_end_are_unchanged() -> None:
    problem, x = Problem(OPERATORS["mask"]), torch.randn(2, *SHAPE)
    for prediction, t in (("noise", torch.tensor([300, 300])), ("flow", torch.zeros(2))):
        kind = Objective.of(training.ObjectiveConfig(prediction_type=prediction))
        network = lambda x, t: torch.cat([0.3 * x, 2 * x], dim=1)  # noqa: E731
        output = posterior_denoiser(network, kind, problem.observation, problem.covariance)(x, t)
        assert torch.equal(output[:, 2:], 2 * x)
        assert torch.equal(output[:, :2], 0.3 * x) == (prediction == "flow")
        assert output.dtype == torch.float32


@pytest.mark.parametrize("time", [1000.0, 700.0])
def test_solver_converges_in_float32_for_a_wide_range_of_eigenvalues(time: float) -> None:
    """The variance of a constant over 128 x 128 pixels is 1e9 times the noise. The bits do not depend on threads."""
    mask = torch.ones(2, 128, 128, dtype=torch.bool)
    mask[:, 30:70, 40:90] = False
    operator, data = Selection(mask), replace(prior(), offset=torch.tensor([2.0, 1.0], dtype=torch.float64))
    values = torch.randn(operator.size, generator=torch.Generator().manual_seed(4))
    observation = Observation(operator, values, torch.full_like(values, 0.004))
    x, kind = torch.randn(1, 2, 128, 128), Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    outputs, threads = [], torch.get_num_threads()
    for count, dtype in ((1, torch.float32), (2, torch.float32), (threads, torch.float64)):
        torch.set_num_threads(count)
        denoise = posterior_denoiser(lambda x, t: x, kind, observation, data)
        outputs.append(denoise(x.to(dtype), torch.tensor([time])))
        assert float(denoise.error.max()) <= 1
    torch.set_num_threads(threads)
    assert torch.equal(outputs[0], outputs[1])
    assert (outputs[0] - outputs[2]).abs().max() <= 0.02


def test_projection_replaces_directly_observed_pixels_only() -> None:
    problem, x = Problem(OPERATORS["groups"]), torch.randn(2, *SHAPE)
    found, mask = problem.observation.project(x), torch.ones(1, 8, 8, dtype=torch.bool)
    mask[:, 2:6, 3:] = False
    assert torch.equal(found[:, 0], x[:, 0])
    assert torch.equal(found[:, 1:][:, ~mask], x[:, 1:][:, ~mask])
    assert torch.equal(found[:, 1:][:, mask], problem.observation.values[: int(mask.sum())].float().expand(2, -1))


def test_restoration_times_fall_from_noise() -> None:
    flow, noise = (Objective.of(training.ObjectiveConfig(prediction_type=name)) for name in ("flow", "noise"))
    for steps in (1, 2, 32, 64, 900, 1000):
        for kind in (flow, noise):
            times = restoration_times(kind, steps)
            assert len(times) == steps
            assert times[0] == kind.last
            assert all(late < early for early, late in pairwise(times))
    ratios = [time / (1000 - time) for time in restoration_times(flow, 64)[1:]]
    assert (ratios[0], ratios[-1]) == pytest.approx((99, 0.015))
    assert ratios[1] / ratios[0] == pytest.approx(ratios[-1] / ratios[-2])
    with pytest.raises(UserError, match="sampling steps"):
        restoration_times(noise, 1001)


def test_invalid_rules_bands_and_sizes_are_rejected() -> None:
    problem, kind = Problem(OPERATORS["mask"]), Objective.of()
    with pytest.raises(UserError, match="covariance or jacobian"):
        posterior_denoiser(lambda x, t: x, kind, problem.observation, problem.covariance, "dps")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="numbers of an observation"):
        Observation(OPERATORS["mask"], torch.zeros(3), torch.zeros(3))
    other = Observation(Selection(torch.ones(3, 8, 8, dtype=torch.bool)), torch.zeros(192), torch.ones(192))
    with pytest.raises(UserError, match="bands of the observation"):
        posterior_denoiser(lambda x, t: x, kind, other, problem.covariance)
