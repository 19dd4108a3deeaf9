"""Intervals of Fréchet distances match the spread over new sets."""

import numpy as np
import pytest

from dithc.evaluate.distances.frechet import fid, fid_floor, fid_floor_at
from dithc.evaluate.distances.interval import fid_interval
from tests.evaluate.conftest import statistics

MIX = np.random.default_rng(99).normal(size=(6, 6)) / 2


def draw_sets(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two sets of six correlated, not normal features with different means and covariances."""
    return rng.normal(size=(n, 6)) @ MIX + 1, rng.gamma(4.0, 0.4, size=(n, 6)) @ MIX.T


def interval(a: np.ndarray, b: np.ndarray) -> list[float] | None:
    x, y = statistics(a), statistics(b)
    return fid_interval(fid(x, y), x, np.array_split(a, 3), y, [b])


def half_width(found: list[float] | None) -> float:
    assert found is not None
    return (found[1] - found[0]) / 2


def test_interval_matches_the_spread_over_new_sets() -> None:
    rng = np.random.default_rng(0)
    sets = [draw_sets(rng, 800) for _ in range(150)]
    spread = np.std([fid(statistics(a), statistics(b)) for a, b in sets], ddof=1)
    estimate = np.mean([half_width(interval(a, b)) for a, b in sets[:20]])
    assert estimate == pytest.approx(1.96 * spread, rel=0.2)  # the error of a deviation of 150 samples is 6%


def test_constant_features_do_not_change_the_interval() -> None:
    a, b = draw_sets(np.random.default_rng(2), 300)
    wider = [np.concatenate([rows, np.zeros((300, 2))], axis=1) for rows in (a, b)]
    np.testing.assert_allclose(interval(*wider), interval(a, b), rtol=1e-6)


def test_interval_requires_more_images_than_features() -> None:
    a, b = draw_sets(np.random.default_rng(3), 6)
    assert interval(a, b) is None


def test_floor_at_n_equals_the_distance_of_equal_distributions_of_size_n() -> None:
    rng = np.random.default_rng(4)
    wanted = np.mean([fid(statistics(draw_sets(rng, 500)[0]), statistics(draw_sets(rng, 1000)[0])) for _ in range(60)])
    estimates = [
        fid_floor_at(fid_floor([draw_sets(rng, 1000)[0]], seed=seed), n_real=1000, n_generated=500, num_features=6)
        for seed in range(60)
    ]
    assert np.mean(estimates) == pytest.approx(wanted, rel=0.1)
    assert fid_floor_at(fid_floor([rng.normal(size=(12, 6))]), n_real=12, n_generated=12, num_features=6) is None
