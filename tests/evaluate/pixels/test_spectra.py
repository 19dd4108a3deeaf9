"""Radial spectra equal known spectra, and a direct sum per frequency."""

import numpy as np
import pytest

from dithc.evaluate.pixels.spectra import log_spectral_distance, radial_power


def power_by_definition(image: np.ndarray) -> np.ndarray:
    """Return the power of one band (H, W) by a direct sum per frequency, in float64 over the full plane."""
    height, width = image.shape
    hann = [0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(side) + 0.5) / side) for side in (height, width)]
    window = hann[0][:, None] * hann[1]
    windowed = (image - (image * window).sum() / window.sum()) * window
    shorter = min(height, width)
    rings: dict[int, list[float]] = {}
    for ky in range(-(height // 2), (height + 1) // 2):
        for kx in range(-(width // 2), (width + 1) // 2):
            wave = np.exp(-2j * np.pi * (ky * np.arange(height)[:, None] / height + kx * np.arange(width) / width))
            ring = int(np.rint(np.hypot(ky * shorter / height, kx * shorter / width)))
            rings.setdefault(ring, []).append(abs((windowed * wave).sum()) ** 2 / (window**2).sum())
    return np.array([np.mean(rings[ring]) for ring in range(1, shorter // 2 + 1)])


@pytest.mark.parametrize("shape", [(16, 16), (15, 15), (12, 20), (9, 14)])
def test_radial_power_equals_the_direct_sum_per_frequency(shape: tuple[int, int]) -> None:
    images = np.random.default_rng(0).normal(3.0, 2.0, (2, *shape))
    found = radial_power(images)
    for band, image in zip(found, images, strict=True):
        np.testing.assert_allclose(band, power_by_definition(image), rtol=1e-10)


def test_double_amplitude_adds_six_decibels_in_every_ring() -> None:
    power = radial_power(np.random.default_rng(2).normal(size=(3, 32, 32)))
    np.testing.assert_allclose(log_spectral_distance(power, 4 * power), 10 * np.log10(4))
    np.testing.assert_allclose(log_spectral_distance(power, power), 0)
    assert np.isnan(log_spectral_distance(power, 0 * power)).all()
