"""Streamed statistics equal textbook formulas for any blocks, and store their provenance."""

from pathlib import Path

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.evaluate.statistics import FeatureOrigin, Statistics

RNG = np.random.default_rng(0)
ORIGIN = FeatureOrigin(extractor="w.pth", kind="inception", sha256="aa", resize="clean", set_hash="s", note="words")


def stream(rows: np.ndarray, *cuts: int, origin: FeatureOrigin = ORIGIN) -> Statistics:
    statistics = Statistics(rows.shape[1], origin=origin)
    for part in np.split(rows, cuts):
        statistics.update(part)
    return statistics


def covariance_bound(rows: np.ndarray) -> float:
    """Return a rounding bound of n products of numbers of size max |x - mean| in float64, with a factor of 8."""
    spread = np.abs(rows - rows.mean(axis=0)).max()
    return float(8 * len(rows) * np.finfo(np.float64).eps * spread**2)


def test_streaming_equals_numpy_covariance() -> None:
    rows = RNG.normal(size=(501, 13))
    statistics = stream(rows, 1, 7, 64, 400)
    np.testing.assert_allclose(statistics.mean(), rows.mean(axis=0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(statistics.covariance(), np.cov(rows.T), rtol=0, atol=covariance_bound(rows))


def test_large_offset_does_not_cancel_the_covariance() -> None:
    spread = RNG.normal(size=(1000, 5)) * 2.0**-10
    rows = spread + 2.0**20  # sum of squares without a shift would lose all digits of the covariance
    statistics = stream(rows, 100, 300)
    np.testing.assert_allclose(statistics.covariance(), np.cov((rows - 2.0**20).T), rtol=1e-9)


def test_float32_rows_are_summed_in_float64() -> None:
    rows = (RNG.normal(size=(4096, 3)) + 1000).astype(np.float32)
    exact = np.cov(rows.astype(np.float64).T)
    np.testing.assert_allclose(stream(rows, 1000).covariance(), exact, rtol=1e-10, atol=1e-10)


def test_covariance_is_exactly_symmetric() -> None:
    sigma = stream(RNG.normal(size=(40, 11)), 13).covariance()
    np.testing.assert_array_equal(sigma, sigma.T)


def test_saved_statistics_preserve_moments_origin_and_mu_sigma_keys(tmp_path: Path) -> None:
    rows = RNG.normal(size=(20, 4))
    statistics = stream(rows, 8)
    statistics.save(tmp_path / "stats.npz")
    with np.load(tmp_path / "stats.npz") as file:
        np.testing.assert_allclose(file["mu"], rows.mean(axis=0))
        np.testing.assert_allclose(file["sigma"], np.cov(rows.T))
    loaded = Statistics.load(tmp_path / "stats.npz")
    assert (loaded.n, loaded.origin) == (20, ORIGIN)
    np.testing.assert_allclose(loaded.mean(), statistics.mean(), rtol=1e-15)
    np.testing.assert_allclose(loaded.covariance(), statistics.covariance(), rtol=1e-14)


def test_loaded_statistics_accept_more_rows(tmp_path: Path) -> None:
    rows = RNG.normal(size=(30, 4))
    stream(rows[:20]).save(tmp_path / "stats.npz")
    loaded = Statistics.load(tmp_path / "stats.npz")
    loaded.update(rows[20:])
    np.testing.assert_allclose(loaded.covariance(), np.cov(rows.T), rtol=1e-12)


def test_truncated_and_third_party_statistics_files_are_rejected(tmp_path: Path) -> None:
    stream(RNG.normal(size=(20, 4))).save(tmp_path / "cut.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-100])
    np.savez(tmp_path / "other.npz", mu=np.zeros(3), sigma=np.eye(3))
    for name in ("cut.npz", "other.npz"):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            Statistics.load(tmp_path / name)
