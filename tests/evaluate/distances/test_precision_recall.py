"""Precision, recall, density and coverage equal the values from all distances, and known values of simple sets."""

import numpy as np
import pytest

from dithc.evaluate.distances import precision_recall as module
from dithc.evaluate.distances.precision_recall import Neighbours, neighbours
from dithc.log import UserError


def truth(real: np.ndarray, generated: np.ndarray, k: int, k_density: int) -> Neighbours:
    """Compute the metrics from every difference of two rows, in float64."""

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sqrt(((x[:, None].astype(np.float64) - y[None]) ** 2).sum(axis=2))

    def radii(x: np.ndarray, k: int) -> np.ndarray:
        return np.sort(distances(x, x), axis=1)[:, k]

    between = distances(real, generated)
    within = between <= radii(real, k_density)[:, None]
    return Neighbours(
        float((between <= radii(real, k)[:, None]).any(axis=0).mean()),
        float((between <= radii(generated, k)).any(axis=1).mean()),
        float(within.sum(axis=0).mean() / k_density),
        float(within.any(axis=1).mean()),
    )


@pytest.mark.parametrize(("n", "m", "block"), [(90, 70, 7), (64, 64, 64), (33, 100, 1)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_blocks_give_what_all_distances_give(
    n: int, m: int, block: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", block)
    rng = np.random.default_rng(n)
    real = (rng.normal(size=(n, 5)) + offset).astype(np.float32)
    generated = (rng.normal(size=(m, 5)) * 1.3 + 0.4 + offset).astype(np.float32)
    found = neighbours(np.array_split(real, 3), [generated[:40], generated[40:]])
    assert found == pytest.approx(truth(real, generated, 3, 5))
    assert 0 < found.precision < 1


def test_equal_sets_are_each_within_the_other() -> None:
    rows = np.random.default_rng(0).normal(3.0, 1.0, (200, 16)).astype(np.float32)
    found = neighbours([rows], [rows[::-1]])
    assert (found.precision, found.recall, found.coverage) == (1.0, 1.0, 1.0)
    assert found.density == pytest.approx(
        6 / 5
    )  # each ball contains the image and 5 other images, and counts one fifth


def test_sets_far_apart_have_nothing_of_each_other() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    assert neighbours([rows], [rows + 100]) == Neighbours(0.0, 0.0, 0.0, 0.0)


def test_a_mode_that_is_dropped_is_missed_by_recall_and_coverage_alone() -> None:
    rng = np.random.default_rng(1)
    modes = [rng.normal(size=(150, 4)) + shift for shift in (0, 40)]
    found = neighbours([np.concatenate(modes)], [rng.normal(size=(150, 4))])
    assert found.precision > 0.8
    assert found.recall == pytest.approx(0.5, abs=0.1)
    assert found.coverage == pytest.approx(0.5, abs=0.05)


def test_an_outlier_among_real_images_moves_recall_but_not_coverage_of_generated_noise() -> None:
    rng = np.random.default_rng(2)
    real, generated = rng.normal(size=(100, 3)), rng.normal(30 * np.eye(3)[0], size=(100, 3))
    outliers = np.concatenate([real[:-4], rng.normal(60 * np.eye(3)[0], size=(4, 3))])
    assert neighbours([real], [generated]).precision == 0.0
    wide = neighbours([outliers], [generated])
    assert wide.precision == 0.0  # four outliers reach each other, k = 3
    assert wide.density > 0.0  # with k = 5 they reach the other images


def test_too_few_images_are_refused() -> None:
    with pytest.raises(UserError, match="n = 5 real and 9 generated"):
        neighbours([np.zeros((5, 2))], [np.zeros((9, 2))])
