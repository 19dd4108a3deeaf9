"""Wald's protocol has its modulation; scores of a finer grid match images with a known shift, angle and detail."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from dithc.core.image_quality import ergas
from dithc.evaluate.restoration.baselines import interpolate
from dithc.evaluate.restoration.sharpening import _correctness, degrade, opensr_scores

SHARES = np.exp([0.0, -4.0, -4.0]) / (1 + 2 * np.exp(-4.0))  # of distances 0, 1 and 1 at temperature 1/4


@pytest.fixture
def truth() -> np.ndarray:
    noise = np.random.default_rng(3).normal(size=(3, 96, 96))
    return 1 + scipy.ndimage.gaussian_filter(noise, (0, 1.5, 1.5), mode="wrap")


@pytest.mark.parametrize("factor", [2, 3, 6])
def test_degraded_waves_have_the_modulation_of_the_sensor(factor: int) -> None:
    """A wave at the Nyquist frequency keeps `mtf` of its amplitude, and keeps its phase at the centers of pixels."""
    pixels = np.arange(40 * factor)
    wave = np.cos(np.pi * (pixels - (factor - 1) / 2) / factor)  # 1 and -1 at the centers of coarse pixels
    found = degrade(
        np.stack([np.tile(wave, (8 * factor, 1)), np.tile(wave, (8 * factor, 1))]), factor, np.array([0.3, 0.1])
    )
    inner = found[:, 4, 10:-10]
    np.testing.assert_allclose(inner, np.array([[0.3], [0.1]]) * (-1.0) ** np.arange(10, 30), atol=2e-3)
    np.testing.assert_allclose(degrade(np.ones((1, 4 * factor, 5 * factor)), factor, 0.2), 1)


def test_degrading_without_modulation_averages_blocks(truth: np.ndarray) -> None:
    expected = truth.reshape(3, 24, 4, 24, 4).mean(axis=(2, 4))
    np.testing.assert_allclose(degrade(truth, 4), expected)


@pytest.mark.parametrize(("factor", "order"), [(2, 1), (3, 1), (2, 3), (3, 3)])
def test_interpolation_reproduces_a_linear_ramp_at_pixel_centers(factor: int, order: int) -> None:
    rows, columns = np.mgrid[: 20 * factor, : 24 * factor] + 0.5
    ramp = np.stack([2 * rows - 3 * columns, columns])
    inner = np.s_[:, 8 * factor : -8 * factor, 8 * factor : -8 * factor]
    found = interpolate(degrade(ramp, factor), factor, order=order)
    np.testing.assert_allclose(found[inner], ramp[inner], atol=0.02 if order == 3 else 1e-9)


def test_true_image_is_an_improvement_and_consistent(truth: np.ndarray) -> None:
    low = torch.nn.functional.interpolate(
        torch.from_numpy(truth)[None], scale_factor=0.25, mode="bilinear", antialias=True
    )
    found = opensr_scores(low[0].numpy(), truth, truth)
    assert [found[key] for key in ("reflectance", "spectral_degrees")] == pytest.approx([0, 0], abs=1e-6)
    assert found["spatial_pixels"] == 0
    assert [found[key] for key in ("improvement", "omission", "hallucination")] == pytest.approx(SHARES)


def test_consistency_measures_known_offsets_angles_and_shifts(truth: np.ndarray) -> None:
    flat = np.ones((2, 32, 32)) * np.array([0.3, 0.4])[:, None, None]
    turned = np.ones((2, 8, 8)) * np.array([0.4, 0.3])[:, None, None]
    found = opensr_scores(turned, flat, flat)
    assert found["reflectance"] == pytest.approx(0.1)
    assert found["spectral_degrees"] == pytest.approx(2 * np.degrees(np.arctan(4 / 3)) - 90)
    moved = np.roll(truth, (2, -8), axis=(1, 2))
    assert opensr_scores(degrade(truth, 2), moved, truth)["spatial_pixels"] == pytest.approx(np.hypot(1, 4), abs=0.1)


def test_correctness_classifies_omitted_and_invented_details(truth: np.ndarray) -> None:
    low = interpolate(degrade(truth, 4), 4, order=1)
    np.testing.assert_allclose(_correctness(low, low, truth), SHARES[[1, 0, 1]])
    invented = opensr_scores(degrade(truth, 4), np.roll(truth, (31, 40), axis=(1, 2))[:, ::-1], truth)
    kept = opensr_scores(degrade(truth, 4), low, truth)
    assert invented["hallucination"] > 0.5 > kept["hallucination"]
    assert kept["omission"] > 0.5
    assert np.isnan(_correctness(low, low, low)).all()


def test_ergas_of_a_relative_error_matches_the_closed_form() -> None:
    truth = np.ones((2, 4, 4)) * np.array([1.0, 5.0])[:, None, None]
    wrong = truth * np.array([1.1, 0.7])[:, None, None]
    assert ergas(wrong, truth, ratio=2, valid=np.ones((4, 4), bool)) == pytest.approx(50 * np.sqrt((0.01 + 0.09) / 2))
