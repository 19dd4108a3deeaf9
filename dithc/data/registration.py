"""Registration of two images of one place to hundredths of a pixel, by phase correlation."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
SIDES = (256, 128, 64, 32)
"""Window sides in pixels, largest first. The first side with a completely valid window is used."""
MOST_WINDOWS = 25
HIGHEST = 0.3
"""Highest frequency used, in cycles per pixel. Above it, noise and aliasing differ between cameras."""
FINE = 100
"""Steps per pixel of the refined peak search."""
LEAST_PEAK = 0.15
"""Lowest accepted peak. Identical images reach 1; unrelated images reach 0.05 in windows of 64 pixels."""


@dataclass(frozen=True)
class Shift:
    """Shift of the second image in pixels down and right, and the number of windows that were measured."""

    down: float
    right: float
    windows: int


def shift_between(first: F64, second: F64, valid: npt.NDArray[np.bool_]) -> Shift | None:
    """Return the median shift of images (H, W) over completely valid windows; None if no window has detail."""
    for side in SIDES:
        corners = _corners(valid, side)
        if corners:
            break
    else:
        return None
    found = []
    for top, left in corners:
        part = np.s_[top : top + side, left : left + side]
        down, right, peak = window_shift(first[part], second[part])
        if peak >= LEAST_PEAK:
            found.append((down, right))
    if not found:
        return None
    down, right = np.median(found, axis=0)
    return Shift(float(down), float(right), len(found))


def window_shift(first: F64, second: F64) -> tuple[float, float, float]:
    """Return the shift (down, right) of `second` against `first`, both (S, S), and the peak height.

    The peak is 1 for identical images and near 0 for unrelated images. It is the maximum of the normalized cross power
    spectrum (Kuglin and Hines 1975), refined by a matrix Fourier transform with finer steps (Guizar-Sicairos, Thurman
    and Fienup 2008, section 2).
    """
    side = len(first)
    taper = np.hanning(side)[:, None] * np.hanning(side)
    spectra = [np.fft.fft2((image - image.mean()) * taper) for image in (first, second)]
    cross = spectra[1] * np.conj(spectra[0])
    frequencies = np.fft.fftfreq(side)
    weight = np.exp(-0.5 * (np.hypot(frequencies[:, None], frequencies) / (HIGHEST / 2)) ** 2)
    size = np.abs(cross)
    phase = np.where(size > 0, cross / np.where(size > 0, size, 1), 0) * weight
    surface = np.fft.ifft2(phase).real
    whole = np.array(np.unravel_index(int(surface.argmax()), surface.shape), dtype=np.float64)
    whole[whole > side / 2] -= side
    steps = np.arange(-FINE, FINE + 1) / FINE
    rows, columns = (np.exp(2j * np.pi * (middle + steps)[:, None] * frequencies) for middle in whole)
    fine = (rows @ phase @ columns.T).real
    down, right = np.unravel_index(int(fine.argmax()), fine.shape)
    return float(whole[0] + steps[down]), float(whole[1] + steps[right]), float(fine.max() / weight.sum())


def _corners(valid: npt.NDArray[np.bool_], side: int) -> list[tuple[int, int]]:
    """Return at most `MOST_WINDOWS` evenly spread corners of completely valid windows, half a side apart."""
    tops, lefts = (range(0, length - side + 1, side // 2) for length in valid.shape)
    found = [(top, left) for top in tops for left in lefts if valid[top : top + side, left : left + side].all()]
    if len(found) <= MOST_WINDOWS:
        return found
    return [found[index] for index in np.linspace(0, len(found) - 1, MOST_WINDOWS).round().astype(int)]
