"""Radial power spectra of images by band.

Legend: C bands, S side of an image in pixels, R = S // 2 rings.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import FloatArray


def radial_power(image: NDArray[np.floating]) -> FloatArray:
    """Return the azimuthally averaged power (C, R) of each band of (C, H, W), in squared units per pixel.

    Column r - 1 is the mean over frequencies of r cycles along the shorter side, +-half a cycle. White noise gives its
    variance in each ring. A Hann window suppresses the edges of the tile; the mean under the window is subtracted
    first.
    """
    height, width = image.shape[1:]
    window, ring, times = _grid(height, width)
    means = (image * window).sum(axis=(1, 2)) / window.sum()  # (C,)
    waves = np.fft.rfft2((image.astype(np.float64) - means[:, None, None]) * window)  # (C, H, W // 2 + 1)
    power = (waves.real**2 + waves.imag**2) / (window**2).sum() * times
    rings = min(height, width) // 2
    sums = np.stack([np.bincount(ring.ravel(), weights=band.ravel(), minlength=rings + 1) for band in power])
    counts = np.bincount(ring.ravel(), weights=times.ravel(), minlength=rings + 1)
    return np.asarray(sums[:, 1 : rings + 1] / counts[1 : rings + 1])


def log_spectral_distance(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the root mean square over rings of the ratio of two spectra (C, R) in decibels (C,); NaN without power."""
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 10 * np.log10(a / b)  # (C, R)
    return np.asarray(np.sqrt((np.where(np.isfinite(decibels), decibels, np.nan) ** 2).mean(axis=1)))


@cache
def _grid(height: int, width: int) -> tuple[FloatArray, NDArray[np.int64], FloatArray]:
    """Return window (H, W), and ring and multiplicity in the half plane of each frequency (H, W // 2 + 1)."""
    window = np.outer(*(np.sin(np.pi * (np.arange(side) + 0.5) / side) ** 2 for side in (height, width)))
    shorter = min(height, width)
    y, x = np.fft.fftfreq(height)[:, None] * shorter, np.fft.rfftfreq(width) * shorter  # cycles along the shorter side
    times = np.full((height, width // 2 + 1), 2.0)
    times[:, 0] = 1.0
    if width % 2 == 0:
        times[:, -1] = 1.0
    return window, np.rint(np.hypot(y, x)).astype(np.int64), times
