"""Scores of a finer grid: consistency with the coarse image, and correctness of details.

Legend: C bands, H, W fine image, h, w coarse image, f = H / h factor.
"""

import math
from typing import Any

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dithc.core.image_quality import spectral_angles, window_shift
from dithc.evaluate.restoration.baselines import interpolate
from dithc.evaluate.statistics import FloatArray

Array = NDArray[np.floating]

OPENSR = ("reflectance", "spectral_degrees", "spatial_pixels", "improvement", "omission", "hallucination")
# Defaults of opensr-test 1.2.1.
SHARPNESS = 0.05  # of the borders between improvement, omission and hallucination
TEMPERATURE = 0.25  # of the shares of the three classes
QUIET = 0.75  # share of pixels without detail


def opensr_scores(low: Array, restored: Array, truth: Array, clear: NDArray[np.bool_]) -> dict[str, float]:
    """Return the six scores of opensr-test (Aybar et al. 2024, DOI 10.1109/LGRS.2024.3401394), without border crop.

    Consistency of `low` (C, h, w) with `restored` (C, H, W), averaged to the coarse grid by a triangle of width 2 f:
    `reflectance` (mean absolute difference), `spectral_degrees` (mean angle), `spatial_pixels` (length of the shift in
    coarse pixels, by phase correlation of the band mean).

    Correctness of details, shares that sum to 1. `restored` gets the histogram of `truth`, and its shift is removed. The
    distance d(x, y) of a pixel is the mean over bands of |x - y| / |x + y|. With L the bilinear interpolation of `low`,
    R the harmonized image, T the truth: a = d(R, T) / d(L, T), b = d(R, L) / d(L, T), g = 0.05:

        improvement   i = a + b (1 - exp(-g (a + b - 1)))
        omission      o = b + a (1 - exp(-g (a + b - 1)))
        hallucination u = exp(-g a b)

    The shares are the means of exp(-v / 0.25), normalized over v in (i, o, u). Pixels count if one of the three
    distances exceeds the 75 % quantile of d(L, T); without any, the shares are NaN.

    Only the coarse pixels in `clear` (h, w) are evaluated; the other pixels have the truth.
    """
    factor = truth.shape[-1] // low.shape[-1]
    covered = clear.repeat(factor, axis=0).repeat(factor, axis=1)  # (H, W)
    restored = np.where(covered, restored, truth)
    fine = torch.from_numpy(np.array(restored, np.float64))[None]
    again = functional.interpolate(fine, size=low.shape[1:], mode="bilinear", antialias=True)[0].numpy()  # (C, h, w)
    shares = _correctness(interpolate(low, factor, order=1), _harmonized(restored, truth), truth, covered)
    reflectance, angle = np.abs(again - low)[:, clear].mean(), np.nanmean(spectral_angles(again, low, axis=0)[clear])
    return dict(zip(OPENSR, map(float, (reflectance, angle, math.hypot(*_shift(low, again)), *shares)), strict=True))


def _shift(first: Array, second: Array) -> tuple[float, float]:
    """Return the shift (down, right) of the band mean of `second` against `first` (C, H, W), in a square window."""
    side = min(first.shape[1:])
    down, right, _ = window_shift(*(x[:, :side, :side].mean(axis=0, dtype=np.float64) for x in (first, second)))
    return down, right


def _harmonized(restored: Array, truth: Array) -> FloatArray:
    """Return the restored image (C, H, W) with the histogram of the truth in each band, and without shift."""
    bands = []
    for band, true in zip(restored, truth, strict=True):
        _, inverse, counts = np.unique(band, return_inverse=True, return_counts=True)
        levels, frequencies = np.unique(true, return_counts=True)
        matched = np.interp(np.cumsum(counts), np.cumsum(frequencies), levels)  # equal numbers of smaller pixels
        bands.append(matched[inverse].reshape(band.shape))
    matched = np.stack(bands)
    down, right = _shift(truth, matched)
    return np.asarray(scipy.ndimage.shift(matched, (0, -down, -right), order=1, mode="nearest"))


def _correctness(low: Array, restored: Array, truth: Array, where: NDArray[np.bool_]) -> Any:
    """Return the shares (3,) of improvement, omission and hallucination of images (C, H, W) in the pixels `where` (H, W)."""

    def distance(x: Array, y: Array) -> FloatArray:
        relative = np.abs(x - y) / np.maximum(np.abs(x + y), 1e-8)
        return np.asarray(relative.mean(axis=0, dtype=np.float64)[where])  # (n,)

    detail, error, change = distance(low, truth), distance(restored, truth), distance(restored, low)
    counts = np.maximum(np.maximum(detail, error), change) > np.quantile(detail, QUIET)
    a, b = (x[counts] / np.maximum(detail[counts], 1e-8) for x in (error, change))
    beyond = 1 - np.exp(-SHARPNESS * (a + b - 1))
    scores = np.stack([a + b * beyond, b + a * beyond, np.exp(-SHARPNESS * a * b)])  # (3, n)
    weights = np.exp(-scores / TEMPERATURE)
    return (weights / weights.sum(axis=0)).mean(axis=1) if counts.any() else np.full(3, np.nan)
