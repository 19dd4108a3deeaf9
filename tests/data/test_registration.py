"""Shifts between images: known shifts are measured, and images without detail return None."""

import numpy as np
import numpy.typing as npt
import pytest
import scipy.ndimage

from dithc.core.image_quality import window_shift
from dithc.data.readers.gaofen2.pansharpen import shift_between

RNG = np.random.default_rng(11)


def scene(side: int) -> npt.NDArray[np.float64]:
    """Create a smooth, periodic random image, so that a shift by Fourier transform is exact."""
    return np.asarray(scipy.ndimage.gaussian_filter(RNG.standard_normal((side, side)), 1.5, mode="wrap"))


def shift(image: npt.NDArray[np.float64], down: float, right: float) -> npt.NDArray[np.float64]:
    return np.asarray(np.fft.ifft2(scipy.ndimage.fourier_shift(np.fft.fft2(image), (down, right))).real)


@pytest.mark.parametrize(("down", "right"), [(0.0, 0.0), (0.37, -0.21), (-2.5, 1.75), (5.0, -7.25)])
def test_known_shift_is_measured_within_a_twentieth_of_a_pixel(down: float, right: float) -> None:
    image = scene(256)
    other = 3.0 * shift(image, down, right) + 40.0 + RNG.normal(0, 0.05, image.shape)
    found = shift_between(image, other, np.ones(image.shape, dtype=bool))
    assert found is not None
    assert abs(found.down - down) < 0.05
    assert abs(found.right - right) < 0.05


def test_invalid_pixels_do_not_affect_the_measured_shift() -> None:
    image = scene(256)
    other, valid = shift(image, 1.5, -0.5), np.ones(image.shape, dtype=bool)
    valid[:, 130:] = False
    other[:, 130:] = RNG.standard_normal((256, 126)) * 100
    found = shift_between(image, other, valid)
    assert found is not None
    assert abs(found.down - 1.5) < 0.05
    assert abs(found.right + 0.5) < 0.05


def test_unrelated_constant_invalid_or_small_images_return_no_shift() -> None:
    whole = np.ones((128, 128), dtype=bool)
    assert shift_between(scene(128), scene(128), whole) is None
    assert shift_between(np.full((128, 128), 7.0), np.full((128, 128), 7.0), whole) is None
    assert shift_between(scene(128), scene(128), ~whole) is None
    assert shift_between(scene(20), scene(20), np.ones((20, 20), dtype=bool)) is None


def test_identical_images_have_zero_shift_and_a_peak_of_1() -> None:
    image = scene(64)
    down, right, peak = window_shift(image, image)
    assert (down, right) == (0.0, 0.0)
    assert peak == pytest.approx(1.0)
