"""Scores of a finer grid match images with a known shift, angle and detail."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from dithc.core.image_quality import ergas
from dithc.evaluate.restoration import Observed, coarse_scores
from dithc.evaluate.restoration.baselines import interpolate
from dithc.evaluate.restoration.sharpening import _correctness, opensr_scores

SHARES = np.exp([0.0, -4.0, -4.0]) / (1 + 2 * np.exp(-4.0))  # of distances 0, 1 and 1 at temperature 1/4


@pytest.fixture
def truth() -> np.ndarray:
    noise = np.random.default_rng(3).normal(size=(3, 96, 96))
    return 1 + scipy.ndimage.gaussian_filter(noise, (0, 1.5, 1.5), mode="wrap")


def opensr(low: np.ndarray, restored: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    return opensr_scores(low, restored, truth, np.ones(low.shape[1:], bool))


def averaged(x: np.ndarray, factor: int) -> np.ndarray:
    return x.reshape(len(x), x.shape[1] // factor, factor, -1, factor).mean(axis=(2, 4))


def test_true_image_is_an_improvement_and_consistent(truth: np.ndarray) -> None:
    low = torch.nn.functional.interpolate(
        torch.from_numpy(truth)[None], scale_factor=0.25, mode="bilinear", antialias=True
    )
    found = opensr(low[0].numpy(), truth, truth)
    assert [found[key] for key in ("reflectance", "spectral_degrees")] == pytest.approx([0, 0], abs=1e-6)
    assert found["spatial_pixels"] == 0
    assert [found[key] for key in ("improvement", "omission", "hallucination")] == pytest.approx(SHARES)


def test_consistency_measures_known_offsets_angles_and_shifts(truth: np.ndarray) -> None:
    flat = np.ones((2, 32, 32)) * np.array([0.3, 0.4])[:, None, None]
    turned = np.ones((2, 8, 8)) * np.array([0.4, 0.3])[:, None, None]
    found = opensr(turned, flat, flat)
    assert found["reflectance"] == pytest.approx(0.1)
    assert found["spectral_degrees"] == pytest.approx(2 * np.degrees(np.arctan(4 / 3)) - 90)
    moved = np.roll(truth, (2, -8), axis=(1, 2))
    assert opensr(averaged(truth, 2), moved, truth)["spatial_pixels"] == pytest.approx(np.hypot(1, 4), abs=0.1)


def test_correctness_classifies_omitted_and_invented_details(truth: np.ndarray) -> None:
    low = interpolate(averaged(truth, 4), 4, order=1)
    np.testing.assert_allclose(_correctness(low, low, truth, np.ones((96, 96), bool)), SHARES[[1, 0, 1]])
    invented = opensr(averaged(truth, 4), np.roll(truth, (31, 40), axis=(1, 2))[:, ::-1], truth)
    kept = opensr(averaged(truth, 4), low, truth)
    assert invented["hallucination"] > 0.5 > kept["hallucination"]
    assert kept["omission"] > 0.5
    assert np.isnan(_correctness(low, low, low, np.ones((96, 96), bool))).all()


def test_ergas_of_a_relative_error_matches_the_closed_form() -> None:
    truth = np.ones((2, 4, 4)) * np.array([1.0, 5.0])[:, None, None]
    wrong = truth * np.array([1.1, 0.7])[:, None, None]
    assert ergas(wrong, truth, ratio=2, valid=np.ones((4, 4), bool)) == pytest.approx(50 * np.sqrt((0.01 + 0.09) / 2))


@pytest.mark.parametrize("mtf", [None, 0.25])
def test_consistency_is_the_coarse_error_over_the_noise(truth: np.ndarray, mtf: float | None) -> None:
    """A constant offset passes blur and decimation unchanged; a detail with zero block means is not visible."""
    gaps = np.zeros((96, 96), bool)
    gaps[:8] = True
    seen = Observed(x=truth, pixels=np.zeros(truth.shape, bool), gaps=gaps, coarse={0: 4, 2: 4}, mtf=mtf)
    image = truth + np.array([0.03, np.nan, -0.04])[:, None, None]
    options = {"deviation": np.array([0.01, 0.02]), "inner": (slice(0, 96), slice(8, 95))}
    found = coarse_scores(seen, 4, image, **options)
    assert found["consistency"] == pytest.approx(np.sqrt((3**2 + 2**2) / 2))
    inside = truth[[0, 2], (12 if mtf else 8) :, 8:92]
    expected = ergas(
        inside + np.array([0.03, -0.04])[:, None, None], inside, ratio=4, valid=np.ones(inside.shape[1:], bool)
    )
    assert found["ergas"] == pytest.approx(expected, rel=0.02)
    junk = image.copy()
    junk[:, :8] = 9.0
    assert coarse_scores(seen, 4, junk, **options) == pytest.approx(found, nan_ok=True) or mtf, "gaps are not evaluated"
    detail = np.tile([[1.0, -1.0], [-1.0, 1.0]], (48, 48))
    invisible = coarse_scores(seen, 4, truth + detail, **options)
    assert invisible["consistency"] < (0.5 if mtf else 1e-9)
    without = Observed(x=truth, pixels=seen.pixels, gaps=gaps & False, coarse=seen.coarse, mtf=mtf)
    assert coarse_scores(without, 4, truth, **options)["improvement"] == pytest.approx(SHARES[0])
