"""Profiles of averages against closed forms, and combined averages against averages kept during the walk."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from dithc.core.posthoc_ema import PowerFunctionProfile, _products, combine_profiles, decay_at_step, gamma_of

LENGTHS = (0.05, 0.1)
STEPS, STORED = 2048, 16


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 6.94, 16.97, 150.0])
def test_gamma_inverts_the_closed_form_of_the_deviation(gamma: float) -> None:
    deviation = math.sqrt((gamma + 1) / (gamma + 3)) / (gamma + 2)
    assert gamma_of(deviation) == pytest.approx(gamma, rel=1e-9)


def test_published_lengths_have_the_published_exponents() -> None:
    assert (round(gamma_of(0.05), 2), round(gamma_of(0.1), 2)) == (16.97, 6.94)


@pytest.mark.parametrize("length", [0.02, 0.1, 0.25])
def test_decays_produce_a_profile_of_the_given_deviation(length: float) -> None:
    share = np.zeros(20_000)
    for step in range(1, len(share) + 1):
        decay = decay_at_step(step, length=length)
        share[: step - 1] *= decay
        share[step - 1] = 1 - decay
    times = (np.arange(len(share)) + 0.5) / len(share)
    mean = share @ times
    assert share.sum() == pytest.approx(1.0, abs=1e-12)
    assert math.sqrt(share @ (times - mean) ** 2) == pytest.approx(length, rel=1e-3)
    assert decay_at_step(1, length=length) == 0.0


def test_profile_products_equal_numerical_integrals() -> None:
    chosen = [
        PowerFunctionProfile(50, 0.03),
        PowerFunctionProfile(70, 0.25),
        PowerFunctionProfile(100, 0.1),
        PowerFunctionProfile(100, 0.07),
    ]

    def density(one: PowerFunctionProfile, t: float) -> float:
        gamma = gamma_of(one.length)
        return (gamma + 1) / one.step * (t / one.step) ** gamma if t <= one.step else 0.0

    found = _products(np.array([gamma_of(one.length) for one in chosen]), np.array([float(one.step) for one in chosen]))
    for row, one in enumerate(chosen):
        for column, other in enumerate(chosen):
            end = min(one.step, other.step)
            truth, _ = quad(lambda t, a=one, b=other: density(a, t) * density(b, t), 0, end, epsabs=0, epsrel=1e-10)
            assert found[row, column] == pytest.approx(truth, rel=1e-8)


def walk() -> dict[float, np.ndarray]:
    """Return a random walk of weights and its averages after each step by their decays; (steps, weights) in float64."""
    draws = np.random.default_rng(0)
    weights = np.cumsum(draws.normal(size=(STEPS, 64)), axis=0)
    kept = {length: np.zeros_like(weights) for length in (0.03, 0.05, 0.07, 0.1, 0.15, 0.2)}
    for length, rows in kept.items():
        average = np.zeros(64)
        for step in range(1, STEPS + 1):
            average += (1 - decay_at_step(step, length=length)) * (weights[step - 1] - average)
            rows[step - 1] = average
    return kept


def test_combined_average_equals_the_tracked_average() -> None:
    kept, every = walk(), STEPS // STORED
    for last, limit in ((STEPS, 0.04), (STEPS - every // 3, 0.04), (STEPS // 2, 0.15)):
        steps = sorted({*range(every, last + 1, every), last})
        stored = [PowerFunctionProfile(step, length) for step in steps for length in LENGTHS]
        for length in (0.07, 0.15, 0.2, 0.03):
            found = combine_profiles(PowerFunctionProfile(last, length), stored)
            average = sum(
                share * kept[one.length][one.step - 1] for share, one in zip(found.shares, stored, strict=True)
            )
            expected = kept[length][last - 1]
            error = np.linalg.norm(average - expected)
            nearest = min(np.linalg.norm(kept[one][last - 1] - expected) for one in LENGTHS)
            assert error < limit * nearest, (last, length, error / nearest)


def test_misfit_decreases_with_more_averages_and_shares_sum_to_one() -> None:
    misfits = []
    for count in (1, 2, 4, 8, 16, 64):
        steps = [STEPS * number // count for number in range(1, count + 1)]
        found = combine_profiles(
            PowerFunctionProfile(STEPS, 0.07),
            [PowerFunctionProfile(step, length) for step in steps for length in LENGTHS],
        )
        assert sum(found.shares) == pytest.approx(1.0, abs=1e-9)
        misfits.append(found.misfit)
    assert misfits == sorted(misfits, reverse=True)
    assert misfits[0] > 0.03 > 1e-3 > misfits[-1]


@pytest.mark.parametrize("length", LENGTHS)
def test_stored_length_selects_only_the_stored_average(length: float) -> None:
    steps = range(100, STEPS + 1, 100)
    stored = [PowerFunctionProfile(step, each) for step in (*steps, STEPS) for each in LENGTHS]
    found = combine_profiles(PowerFunctionProfile(STEPS, length), stored)
    expected = [float(one == PowerFunctionProfile(STEPS, length)) for one in stored]
    np.testing.assert_allclose(found.shares, expected, atol=1e-7)
    assert found.misfit < 1e-6


def test_neighboring_steps_of_a_long_run_do_not_cancel() -> None:
    last = 9_999_999
    stored = [PowerFunctionProfile(last - number, length) for number in range(20) for length in LENGTHS]
    found = combine_profiles(PowerFunctionProfile(last, 0.07), stored)
    assert sum(map(abs, found.shares)) < 1.5
    assert found.misfit == pytest.approx(
        combine_profiles(PowerFunctionProfile(last, 0.07), stored[:2]).misfit, rel=0.01
    )
