"""Pansharpening of multispectral bands: registration of both images, sharpening, and quality at reduced resolution.

Legend: C bands, H, W of the panchromatic grid; h, w of a grid that is `ratio` times coarser; r the ratio.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.ndimage

from dithc.core.image_quality import block_mean, ergas, spectral_angles, window_shift

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Q_BLOCK = 32
F64 = npt.NDArray[np.float64]
SIDES = (256, 128, 64, 32)
"""Window sides in pixels, largest first. The first side with a completely valid window is used."""
MAX_WINDOWS = 25
MIN_PEAK = 0.15
"""Lowest accepted peak. Identical images reach 1; unrelated images reach 0.05 in windows of 64 pixels."""


def gsa(bands: F32, pan: F32, *, coarse_bands: F32, coarse_pan: F32, valid: Mask, coarse_valid: Mask) -> F32:
    """Sharpen interpolated bands (C, H, W) by adaptive Gram-Schmidt (Aiazzi, Baronti and Selva 2007).

    The intensity is the combination of the bands nearest to the panchromatic image (H, W) at the coarse pixel size
    (IEEE TGRS 45(10), section III-B), from `coarse_bands` (C, h, w) and `coarse_pan` (h, w). Each band receives the
    remaining detail by its covariance with the intensity (equation 3). Pixels that are not valid have no influence,
    and any value in the result.
    """
    samples = [band[coarse_valid].astype(np.float64) for band in coarse_bands]
    design = np.stack([*samples, np.ones_like(samples[0])], axis=1)  # (n, C + 1)
    weights, *_ = np.linalg.lstsq(design, coarse_pan[coarse_valid].astype(np.float64), rcond=None)
    intensity = np.tensordot(weights[:-1].astype(np.float32), bands, axes=1) + np.float32(weights[-1])  # (H, W)
    centered = intensity[valid] - intensity[valid].mean(dtype=np.float64)
    variance = float((centered**2).mean(dtype=np.float64))
    detail = pan - intensity
    detail -= np.float32(detail[valid].mean(dtype=np.float64))
    sharpened = np.empty_like(bands)
    for band, target in zip(bands, sharpened, strict=True):
        covariance = float((band[valid] * centered).mean(dtype=np.float64))
        np.multiply(detail, np.float32(covariance / variance if variance else 0.0), out=target)
        target += band
    return sharpened


class PansharpenQuality(NamedTuple):
    """Error measures against the truth: ERGAS (0 is best), mean spectral angle in degrees, and Q (1 is best)."""

    ergas: float
    sam_degrees: float
    q: float


def quality(image: F32, truth: F32, *, ratio: int, valid: Mask) -> PansharpenQuality:
    """Compare an image (C, H, W) with its truth over the valid pixels (H, W).

    Q after Wang and Bovik (IEEE Signal Processing Letters 9(3), 2002, equation 2), in blocks of 32 pixels, over all
    bands. The angle of a black spectrum is 0.
    """
    return PansharpenQuality(
        ergas=ergas(image, truth, ratio=ratio, valid=valid),
        sam_degrees=float(np.nan_to_num(spectral_angles(image[:, valid], truth[:, valid], axis=0)).mean()),
        q=_mean_q(image, truth, valid),
    )


def _mean_q(image: F32, truth: F32, valid: Mask) -> float:
    """Return the mean Q over bands and completely valid blocks, or over all valid pixels if no block is valid."""
    height, width = valid.shape
    corners = [(y, x) for y in range(0, height - Q_BLOCK + 1, Q_BLOCK) for x in range(0, width - Q_BLOCK + 1, Q_BLOCK)]
    blocks = [np.s_[y : y + Q_BLOCK, x : x + Q_BLOCK] for y, x in corners]
    parts: list[Any] = [block for block in blocks if valid[block].all()] or [valid]
    return float(np.mean([_q_index(x[part], y[part]) for x, y in zip(image, truth, strict=True) for part in parts]))


def _q_index(image: F32, truth: F32) -> float:
    x, y = image.ravel().astype(np.float64), truth.ravel().astype(np.float64)
    means = x.mean(), y.mean()
    denominator = (x.var() + y.var()) * (means[0] ** 2 + means[1] ** 2)
    if not denominator:
        return 1.0 if np.array_equal(x, y) else 0.0
    covariance = ((x - means[0]) * (y - means[1])).mean()
    return float(4.0 * covariance * means[0] * means[1] / denominator)


def reduced_resolution(
    coarse_bands: F32, pan: F32, *, ratio: int, coarse_valid: Mask
) -> tuple[PansharpenQuality, PansharpenQuality] | None:
    """Return the quality of sharpened and of interpolated bands after Wald, Ranchin and Mangolini (PE&RS 63(6), 1997).

    All images are `ratio` r times coarser, so that the truth is known: coarse_bands (C, h, w), with pan (h r, w r).
    None if no pixel with valid neighbors is left.
    """
    height, width = (side // ratio * ratio for side in coarse_valid.shape)  # complete pixels of the coarsest grid
    truth, valid = coarse_bands[:, :height, :width], coarse_valid[:height, :width]
    coarse_pan = block_mean(pan[: height * ratio, : width * ratio], ratio)  # (h, w)
    coarsest = block_mean(truth, ratio)  # (C, h / r, w / r)
    coarsest_valid = block_mean(valid.astype(np.float32), ratio) == 1.0
    blocks = np.kron(coarsest_valid, np.ones((ratio, ratio), dtype=bool))  # (h, w)
    inner = np.asarray(scipy.ndimage.binary_erosion(blocks, iterations=ratio), dtype=np.bool_)  # neighbors are valid
    if not inner.any():
        return None
    expanded = np.stack([scipy.ndimage.zoom(band, ratio, order=1, mode="nearest", grid_mode=True) for band in coarsest])
    sharpened = gsa(
        expanded,
        coarse_pan,
        coarse_bands=coarsest,
        coarse_pan=block_mean(coarse_pan, ratio),
        valid=inner,
        coarse_valid=coarsest_valid,
    )
    return quality(sharpened, truth, ratio=ratio, valid=inner), quality(expanded, truth, ratio=ratio, valid=inner)


class Shift(NamedTuple):
    """Shift of the second image in pixels down and right, and the number of windows that were measured."""

    down: float
    right: float
    windows: int


def shift_between(first: F64, second: F64, valid: npt.NDArray[np.bool_]) -> Shift | None:
    """Return the median shift of images (H, W) over completely valid windows; None if no window has detail."""
    side, corners = next(((side, valid_corners) for side in SIDES if (valid_corners := _corners(valid, side))), (0, []))
    shifts = []
    for top, left in corners:
        part = np.s_[top : top + side, left : left + side]
        down, right, peak = window_shift(first[part], second[part])
        if peak >= MIN_PEAK:
            shifts.append((down, right))
    if not shifts:
        return None
    down, right = np.median(shifts, axis=0)
    return Shift(float(down), float(right), len(shifts))


def _corners(valid: npt.NDArray[np.bool_], side: int) -> list[tuple[int, int]]:
    """Return at most `MAX_WINDOWS` evenly spread corners of completely valid windows, half a side apart."""
    tops, lefts = (range(0, length - side + 1, side // 2) for length in valid.shape)
    corners = [(top, left) for top in tops for left in lefts if valid[top : top + side, left : left + side].all()]
    if len(corners) <= MAX_WINDOWS:
        return corners
    return [corners[index] for index in np.linspace(0, len(corners) - 1, MAX_WINDOWS).round().astype(int)]
