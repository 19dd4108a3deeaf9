"""Comparison of the posterior rules with azula, an independent implementation, on the same nonlinear network."""

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.config import training
from dithc.diffusion import Objective
from dithc.diffusion.restoration import posterior_denoiser
from dithc.diffusion.restoration.posterior import ACCEPTABLE_ERROR
from dithc.diffusion.restoration.solver import Solver
from tests.diffusion.restoration.test_posterior import MEAN, OPERATORS, SHAPE, Problem

pytest.importorskip("azula", reason="azula is not installed: nothing to compare with")
from azula.denoise import Denoiser, DiracPosterior
from azula.guidance import JFPSDenoiser, MMPSDenoiser
from azula.noise import Schedule

FLOW = Objective.of(training.ObjectiveConfig(prediction_type="flow"))
Clean = Callable[[Tensor, float, float], Tensor]


def nonlinear(problem: Problem) -> Clean:
    """Return the exact denoiser of the prior with a smooth perturbation, whose Jacobian is not symmetric."""
    values, vectors = torch.linalg.eigh(problem.of_data)

    def clean(x: Tensor, signal: float, noise: float) -> Tensor:
        shrunk = (x.flatten(1) - signal * MEAN) @ vectors * (signal * values / (signal**2 * values + noise**2))
        exact = shrunk @ vectors.T + MEAN
        return (exact + 0.02 * torch.sin(3 * exact)).reshape(x.shape)

    return clean


class Straight(Schedule):
    """The path x_t = (1 - t) x + t noise of a flow."""

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return 1 - t, t


class Network(Denoiser):
    schedule = Straight()

    def __init__(self, clean: Clean) -> None:
        super().__init__()
        self.clean = clean

    def forward(self, x: Tensor, t: Tensor, **_: Any) -> DiracPosterior:
        return DiracPosterior(self.clean(x, 1 - float(t), float(t)))


class Dense:
    """Covariance as a matrix, in azula's terms."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix).reshape(x.shape)

    @property
    def inv(self) -> "Dense":
        return Dense(torch.linalg.inv(self.matrix))

    def __add__(self, other: Callable[[Tensor], Tensor]) -> "Dense":
        size = len(self.matrix)
        return Dense(self.matrix + other(torch.eye(size, dtype=torch.float64).reshape(size, *SHAPE)).flatten(1))


@pytest.mark.parametrize("time", [0.9, 0.5, 0.05])
@pytest.mark.parametrize("name", ["mask", "groups"])
def test_converged_rules_equal_those_of_azula(name: str, time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "update", partialmethod(Solver.update, tolerance=1e-5))
    problem = Problem(OPERATORS[name])
    clean, observation = nonlinear(problem), problem.observation
    x = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.full((3,), 1000 * time)
    arguments = Network(clean), observation.values.expand(3, -1), observation.operator.apply
    error = ACCEPTABLE_ERROR * time / (1 - time)
    variance = observation.deviation**2 + error**2 * observation.operator.row_norms()
    noise = lambda y: y * variance  # noqa: E731
    peers = {
        "covariance": JFPSDenoiser(*arguments, noise, Dense(problem.of_data), iterations=100),
        "jacobian": MMPSDenoiser(*arguments, noise, solver="cg", iterations=100),
    }
    plain = clean(x, 1 - time, time)
    for rule, peer in peers.items():

        def network(x: Tensor, t: Tensor) -> Tensor:
            return FLOW.output_of(clean(x, 1 - time, time), x, t)

        denoise = posterior_denoiser(network, FLOW, observation, problem.covariance, rule, 100)
        found, expected = FLOW.clean(denoise(x, t), x, t), peer(x, torch.tensor(time, dtype=torch.float64)).mean
        # The covariance rule takes the noisy image as known beyond the border, see the package.
        limit = {"covariance": 0.06, "jacobian": 1e-4}[rule]
        assert (found - expected).norm() <= limit * (expected - plain).norm()
