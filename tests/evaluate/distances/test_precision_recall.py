"""Precision and recall equal the values from all distances, and known values of simple sets."""

import importlib

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.evaluate.distances.precision_recall import precision_recall


def reference_metrics(real: np.ndarray, generated: np.ndarray, k: int) -> dict[str, float]:
    """Compute the metrics from every difference of two rows, in float64."""

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sqrt(((x[:, None].astype(np.float64) - y[None]) ** 2).sum(axis=2))

    def radii(x: np.ndarray, k: int) -> np.ndarray:
        return np.sort(distances(x, x), axis=1)[:, k]

    between = distances(real, generated)
    return {
        "precision": (between <= radii(real, k)[:, None]).any(axis=0).mean(),
        "recall": (between <= radii(generated, k)).any(axis=1).mean(),
    }


@pytest.mark.parametrize(("n", "m", "block"), [(90, 70, 7), (64, 64, 64), (33, 100, 1)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_blockwise_metrics_equal_metrics_of_all_distances(
    n: int, m: int, block: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("dithc.evaluate.distances.precision_recall")  # the package exports the function
    monkeypatch.setattr(module, "BLOCK_ROWS", block)
    rng = np.random.default_rng(n)
    real = (rng.normal(size=(n, 5)) + offset).astype(np.float32)
    generated = (rng.normal(size=(m, 5)) * 1.3 + 0.4 + offset).astype(np.float32)
    found = precision_recall(np.array_split(real, 3), [generated[:40], generated[40:]])
    assert found == pytest.approx(reference_metrics(real, generated, 3))
    assert 0 < found["precision"] < 1


def test_equal_sets_have_full_precision_and_recall() -> None:
    rows = np.random.default_rng(0).normal(3.0, 1.0, (200, 16)).astype(np.float32)
    found = precision_recall([rows], [rows[::-1]])
    assert found == {"precision": 1.0, "recall": 1.0}


def test_too_few_images_are_rejected() -> None:
    with pytest.raises(UserError, match="n = 3 real and 9 generated"):
        precision_recall([np.zeros((3, 2))], [np.zeros((9, 2))])
