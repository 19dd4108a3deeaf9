"""KID equals the sum over pairs, and intervals follow from leave-one-out differences with their nominal coverage."""

import math

import numpy as np
import pytest

from dithc.core.artifacts.summaries import NORMAL_95
from dithc.evaluate.distances.kernel import kid
from tests.evaluate.conftest import correlated

D = 8  # features of the normal sets


def kid_by_pairs(x: np.ndarray, y: np.ndarray) -> float:
    """Compute the definition pair by pair."""
    k = lambda a, b: (a @ b / x.shape[1] + 1) ** 3  # noqa: E731
    within_x = np.mean([k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    within_y = np.mean([k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    return float(within_x + within_y - 2 * np.mean([k(a, b) for a in x for b in y]))


def true_mmd2(shift: float) -> float:
    """Return KID of N(0, I) from N(shift, I), from the cumulants of a mean of D products of normal numbers."""

    def kernel(m: float, q: float) -> float:
        first, second = m * q, (m**2 + 1) * (q**2 + 1)  # moments of one product
        third = (m**3 + 3 * m) * (q**3 + 3 * q)
        mean, variance = first, (second - first**2) / D  # cumulants of the mean of D of them
        skewness = (third - 3 * first * second + 2 * first**3) / D**2
        return (mean + 1) ** 3 + 3 * (mean + 1) * variance + skewness

    return kernel(0, 0) + kernel(shift, shift) - 2 * kernel(0, shift)


def measured_coverage(intervals: list[list[float] | None], truth: float) -> float:
    """Return the share of intervals that contain the true value."""
    return float(np.mean([one is not None and one[0] <= truth <= one[1] for one in intervals]))


def test_kid_equals_the_sum_over_pairs() -> None:
    x, y = correlated(13, 7, 3), correlated(14, 5, 3)
    assert kid([x], [y]).value == pytest.approx(kid_by_pairs(x, y), rel=1e-10)


@pytest.mark.parametrize(("n", "m"), [(7, 5), (3, 9), (3, 3)])
def test_interval_follows_from_leave_one_out_differences(n: int, m: int) -> None:
    x, y = correlated(17, n, 3), correlated(18, m, 3)
    whole = kid_by_pairs(x, y)
    real = [(whole - kid_by_pairs(np.delete(x, i, axis=0), y)) * math.sqrt((n - 1) / n) for i in range(n)]
    generated = [(whole - kid_by_pairs(x, np.delete(y, i, axis=0))) * math.sqrt((m - 1) / m) for i in range(m)]
    half = NORMAL_95 * math.hypot(*real, *generated)
    assert kid([x], [y]).interval == pytest.approx([whole - half, whole + half], rel=1e-8)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_interval_has_nominal_coverage(shift: float) -> None:
    rng = np.random.default_rng(19)
    intervals = [kid([rng.normal(size=(80, D))], [rng.normal(size=(60, D)) + shift]).interval for _ in range(600)]
    assert 0.92 < measured_coverage(intervals, true_mmd2(shift)) < (0.975 if shift else 1.001)  # wide for equal sets


def test_kid_of_large_sets_is_independent_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dithc.evaluate.distances.kernel.SUBSET", 100)
    x, y = correlated(16, 1500, 4), correlated(16, 1500, 4) + 1
    found, same = kid([x[:700], x[700:]], [y]), kid([x], [y])
    assert found.value == pytest.approx(same.value, rel=1e-9)
    assert found.interval == pytest.approx(same.interval, rel=1e-6)


@pytest.mark.slow
def test_interval_of_subsets_has_nominal_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dithc.evaluate.distances.kernel.SUBSET", 40)
    monkeypatch.setattr("dithc.evaluate.distances.kernel.SUBSETS", 20)
    rng = np.random.default_rng(21)
    intervals = [
        kid([rng.normal(size=(200, D))], [rng.normal(size=(150, D)) + 0.5], seed=seed).interval for seed in range(400)
    ]
    assert 0.92 < measured_coverage(intervals, true_mmd2(0.5)) < 0.98


def test_two_images_have_a_distance_and_no_interval() -> None:
    found = kid([np.eye(2)], [np.eye(3)[:, :2]])
    assert math.isfinite(found.value)
    assert found.interval is None
