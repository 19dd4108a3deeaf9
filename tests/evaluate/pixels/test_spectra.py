"""Radial spectra equal known spectra, and a direct sum per frequency."""

import numpy as np
import pytest

from dithc.evaluate.pixels.spectra import log_spectral_distance, radial_power


def by_definition(image: np.ndarray) -> np.ndarray:
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
def test_power_is_that_of_each_frequency_by_its_definition(shape: tuple[int, int]) -> None:
    images = np.random.default_rng(0).normal(3.0, 2.0, (2, *shape))
    found = radial_power(images)
    for band, image in zip(found, images, strict=True):
        np.testing.assert_allclose(band, by_definition(image), rtol=1e-10)


def test_white_noise_is_flat_at_its_variance() -> None:
    rng = np.random.default_rng(1)
    power = np.mean([radial_power(rng.normal(5.0, 3.0, (1, 64, 64)))[0] for _ in range(200)], axis=0)
    np.testing.assert_allclose(power[2:], 9.0, rtol=0.1)


@pytest.mark.parametrize(("ky", "kx", "ring"), [(0, 9, 9), (12, 0, 12), (6, 8, 10), (-6, 8, 10)])
def test_a_cosine_is_at_its_ring(ky: int, kx: int, ring: int) -> None:
    y, x = np.mgrid[:64, :64]
    power = radial_power(np.cos(2 * np.pi * (ky * y + kx * x) / 64)[None])[0]
    assert power.argmax() == ring - 1
    assert power[ring - 3 : ring + 2].sum() > 0.99 * power.sum()  # the window spreads it over its neighbors


def test_an_even_image_has_no_power() -> None:
    assert radial_power(np.full((1, 32, 32), 7.0)).max() < 1e-20


def test_twice_the_amplitude_is_six_decibels_at_every_ring() -> None:
    power = radial_power(np.random.default_rng(2).normal(size=(3, 32, 32)))
    np.testing.assert_allclose(log_spectral_distance(power, 4 * power), 10 * np.log10(4))
    np.testing.assert_allclose(log_spectral_distance(power, power), 0)
    assert np.isnan(log_spectral_distance(power, 0 * power)).all()
