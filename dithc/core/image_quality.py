"""Measures of images against a reference, and of their seams and shifts, in float64.

Legend: C bands, H, W image, r ratio of two pixel sizes, S side of a square window.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

SSIM_WINDOW = 7
SSIM_CONSTANTS = (0.01, 0.03)
MAX_FREQUENCY = 0.3
"""Highest frequency used for registration, in cycles per pixel. Above it, noise and aliasing differ between cameras."""
SUBPIXEL_STEPS = 100
"""Steps per pixel of the refined peak search."""


def block_mean(image: Array, ratio: int) -> F32:
    """Average squares of `ratio` pixels: (..., H, W) to (..., H / r, W / r), for sides divisible by `ratio`."""
    *front, height, width = image.shape
    blocks = image.reshape(*front, height // ratio, ratio, width // ratio, ratio)
    return np.asarray(blocks.mean(axis=(-3, -1), dtype=np.float32))


def ergas(image: Array, truth: Array, *, ratio: float, valid: Mask) -> float:
    """Return the relative global error of images (C, H, W) over the valid pixels (H, W); 0 is best.

    `ratio` is the coarse over the fine pixel size. Source: Wald (Data Fusion, 2002, equation 8.9), 100 / r times the
    root mean square over bands of RMSE over mean.
    """
    predicted, true = image[:, valid].astype(np.float64), truth[:, valid].astype(np.float64)  # (C, n)
    relative = ((predicted - true) ** 2).mean(axis=1) / true.mean(axis=1) ** 2
    return float(100.0 / ratio * np.sqrt(relative.mean()))


def spectral_angles(a: Array, b: Array, *, axis: int) -> F64:
    """Return the angles in degrees of spectra along an axis (Kruse et al. 1993); NaN for a black spectrum.

    The formula 2 atan2(|u - v|, |u + v|) of unit vectors is accurate for small angles.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = (x / np.linalg.norm(x, axis=axis, keepdims=True) for x in (np.asarray(y, np.float64) for y in (a, b)))
    return np.asarray(np.rad2deg(2 * np.arctan2(np.linalg.norm(u - v, axis=axis), np.linalg.norm(u + v, axis=axis))))


def structural_similarity(x: Array, y: Array, *, data_range: float) -> F64:
    """Return the similarity at each window of x and y (..., H, W) (Wang et al. 2004, equation 13).

    Windows are uniform, 7 x 7 pixels (or the size of a smaller image) and inside the image, so that the result is
    (..., H - 6, W - 6). Moments are unbiased. Windows with values that are not finite have NaN.
    """
    from scipy.ndimage import uniform_filter1d  # scipy takes longer to import than the package

    side = min(SSIM_WINDOW, *x.shape[-2:])
    c1, c2 = ((constant * data_range) ** 2 for constant in SSIM_CONSTANTS)
    inner = slice(side // 2, -((side - 1) // 2) or None)

    def mean(image: F64) -> F64:
        rows = uniform_filter1d(image, side, axis=-2)[..., inner, :]
        return np.asarray(uniform_filter1d(rows, side, axis=-1)[..., inner])

    known = np.isfinite(x) & np.isfinite(y)
    x, y = (np.where(known, image, 0).astype(np.float64) for image in (x, y))
    mean_x, mean_y, unbiased = mean(x), mean(y), side**2 / max(1, side**2 - 1)
    var_x, var_y = (mean(x * x) - mean_x**2) * unbiased, (mean(y * y) - mean_y**2) * unbiased
    covariance = (mean(x * y) - mean_x * mean_y) * unbiased
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    similarity /= (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    return (
        similarity if known.all() else np.where(mean(known.astype(np.float64)) > 1 - 0.5 / side**2, similarity, np.nan)
    )


def ensemble_quantile(members: Array, share: float | Sequence[float], *, axis: int = 0) -> F64:
    """Return quantiles of K members at ranks p (K + 1), which do not narrow for a small K.

    The truth of a calibrated ensemble is below member number r with probability r / (K + 1). Below 19 members, the 5 and
    95% quantiles are the smallest and largest members, which cover (K - 1) / (K + 1).
    """
    return np.asarray(np.quantile(members, share, axis=axis, method="weibull"))


def ensemble_variance(members: Array) -> F64:
    """Return the unbiased variance of members (K, ...) of which 2 k and 2 k + 1 may depend on each other.

    It is the variance within pairs of one mean, plus the variance of the means of the pairs.
    """
    first, second = (members[start::2].astype(np.float64) for start in (0, 1))
    return np.asarray(np.square((first - second) / 2).mean(axis=0) + ((first + second) / 2).var(axis=0, ddof=1))


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
    weight = np.exp(-0.5 * (np.hypot(frequencies[:, None], frequencies) / (MAX_FREQUENCY / 2)) ** 2)
    size = np.abs(cross)
    phase = np.where(size > 0, cross / np.where(size > 0, size, 1), 0) * weight
    surface = np.fft.ifft2(phase).real
    coarse_peak = np.array(np.unravel_index(int(surface.argmax()), surface.shape), dtype=np.float64)
    coarse_peak[coarse_peak > side / 2] -= side
    steps = np.arange(-SUBPIXEL_STEPS, SUBPIXEL_STEPS + 1) / SUBPIXEL_STEPS
    rows, columns = (np.exp(2j * np.pi * (middle + steps)[:, None] * frequencies) for middle in coarse_peak)
    fine = (rows @ phase @ columns.T).real
    down, right = np.unravel_index(int(fine.argmax()), fine.shape)
    return float(coarse_peak[0] + steps[down]), float(coarse_peak[1] + steps[right]), float(fine.max() / weight.sum())


def seam_ratio(x: Array, rows: Sequence[int], columns: Sequence[int], *, window: tuple[int, int]) -> float:
    """Return the mean neighbor difference of x (..., H, W) at window borders over all others; 1 without seams.

    `rows` and `columns` are window starts, `window` is (h, w). Pixels with NaN are ignored.
    """
    sums, counts = [0.0, 0.0], [0, 0]
    for axis, origins, side in ((-2, rows, window[0]), (-1, columns, window[1])):
        steps = np.moveaxis(np.abs(np.diff(x.astype(np.float64), axis=axis)), axis, 0)  # (length - 1, ...)
        edges = {edge - 1 for first in origins for edge in (first, first + side)}
        is_border = np.array([position in edges for position in range(len(steps))], dtype=bool)
        for index, part in enumerate((steps[is_border], steps[~is_border])):
            differences = part[np.isfinite(part)]
            sums[index] += float(differences.sum())
            counts[index] += differences.size
    if not counts[0] or not sums[1]:
        return 1.0
    return sums[0] / counts[0] / (sums[1] / counts[1])
