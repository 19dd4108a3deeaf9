"""Tests of posterior sampling against float64 linear algebra for normal data, and for a mixture of two components."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError
from dithc.diffusion import Objective, sample, sample_flow
from dithc.diffusion.restoration import (
    BandGroups,
    LinearOperator,
    Observation,
    RadialCovariance,
    Resampling,
    Selection,
    conditional_mean,
    posterior_denoiser,
    project,
    restoration_times,
)

SHAPE = (2, 12, 12)
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
    gap[:, 3:9, 4:] = False
    band = torch.zeros(SHAPE, dtype=torch.bool)
    band[1] = True
    return {
        "mask": Selection(gap),
        "band": Selection(band),
        "mean": Resampling(SHAPE, 2),
        "blur": Resampling(SHAPE, 3, mtf=0.3),
        "groups": BandGroups(SHAPE, {(1,): Selection(gap[:1]), (0,): Resampling((1, 12, 12), 4, mtf=0.2)}),
    }


OPERATORS = operators()


class Problem:
    """Observation of an image of the prior, with the exact posterior mean and covariance."""

    def __init__(self, operator: LinearOperator) -> None:
        generator = torch.Generator().manual_seed(1)
        self.covariance = prior()
        self.of_data = self.covariance.apply(IMAGES).flatten(1)
        matrix, deviation = operator.apply(IMAGES).T, torch.full((operator.size,), NOISE, dtype=torch.float64)
        image = MEAN + torch.linalg.cholesky(self.of_data) @ torch.randn(SIZE, generator=generator).double()
        values = matrix @ image + deviation * torch.randn(operator.size, generator=generator).double()
        self.observation = Observation(operator, values, deviation)
        gain = torch.linalg.solve(matrix @ self.of_data @ matrix.T + NOISE**2 * torch.eye(operator.size), matrix @ self.of_data).T
        self.mean = MEAN + gain @ (values - MEAN * matrix.sum(1))
        self.variance = (self.of_data - gain @ matrix @ self.of_data).diagonal()

    def samples(self, sampler: str, rule: str, start: Tensor, prediction: str = "", **given: object) -> Tensor:
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

        denoise = kind.sampled(posterior_denoiser(network, kind, self.observation, self.covariance, rule, **given))
        times = restoration_times(kind, steps // 2 if sampler == "heun" else steps)
        options = {"steps": steps, "shape": SHAPE, "noise": lambda step: start.reshape(-1, *SHAPE), "times": times}
        if kind.schedule is None:
            return sample_flow(sampler, velocity=denoise, **options).flatten(1)
        return sample(sampler, denoise=denoise, schedule=kind.schedule, **options).flatten(1)


def assert_exact(problem: Problem, found: Tensor, *, error: float = 0.05) -> None:
    mean, total = found.mean(0), problem.variance.sum()
    variance = (found - mean).square().mean(0)
    print("error %.4f deviation %.4f" % (((mean - problem.mean).square().sum() / total).sqrt(), (variance.sum() / total).sqrt()))
    assert (mean - problem.mean).square().sum() <= error**2 * total
    assert 0.95 <= (variance.sum() / total).sqrt() <= 1.05


def directions(count: int) -> Tensor:
    """Return orthogonal starts and their negatives: a linear sampler has exact moments with SIZE pairs."""
    q = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3)).double())[0]
    return math.sqrt(SIZE) * torch.cat([q[:count], -q[:count]])


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("rule", ["covariance", "jacobian"])
@pytest.mark.parametrize("sampler", list(SAMPLERS))
@pytest.mark.parametrize("name", list(OPERATORS))
def test_posterior_of_normal_data_equals_linear_algebra(name: str, sampler: str, rule: str) -> None:
    problem = Problem(OPERATORS[name])
    start = torch.randn(4096, SIZE, generator=torch.Generator().manual_seed(2)).double()
    assert_exact(problem, problem.samples(sampler, rule, start, **({"iterations": 20} if rule == "jacobian" else {})))


@pytest.mark.parametrize(("name", "sampler", "rule"), [("mask", "heun", "covariance"), ("groups", "dpm-solver", "covariance"), ("mean", "heun", "jacobian")])
def test_quick(name: str, sampler: str, rule: str) -> None:
    problem = Problem(OPERATORS[name])
    assert_exact(problem, problem.samples(sampler, rule, directions(SIZE)))
