"""Pansharpening of multispectral bands, and its quality at reduced resolution.

Legend: C bands, H, W of the panchromatic grid; h, w of a grid that is `ratio` times coarser; r the ratio.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.ndimage

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Q_BLOCK = 32


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
    centred = intensity[valid] - intensity[valid].mean(dtype=np.float64)
    variance = float((centred**2).mean(dtype=np.float64))
    detail = pan - intensity
    detail -= np.float32(detail[valid].mean(dtype=np.float64))
    sharpened = np.empty_like(bands)
    for band, target in zip(bands, sharpened, strict=True):
        covariance = float((band[valid] * centred).mean(dtype=np.float64))
        np.multiply(detail, np.float32(covariance / variance if variance else 0.0), out=target)
        target += band
    return sharpened


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Error measures against the truth: ERGAS (0 is best), mean spectral angle in degrees, and Q (1 is best)."""

    ergas: float
    sam_degrees: float
    q: float


def quality(image: F32, truth: F32, *, ratio: int, valid: Mask) -> Quality:
    """Compare an image (C, H, W) with its truth over the valid pixels (H, W).

    ERGAS after Wald (Data Fusion, 2002, equation 8.9); spectral angle after Yuhas et al. (1992); Q after Wang and
    Bovik (IEEE Signal Processing Letters 9(3), 2002, equation 2), in blocks of 32 pixels, over all bands.
    """
    seen, true = image[:, valid].astype(np.float64), truth[:, valid].astype(np.float64)  # (C, n)
    relative = ((seen - true) ** 2).mean(axis=1) / true.mean(axis=1) ** 2
    lengths = np.linalg.norm(seen, axis=0) * np.linalg.norm(true, axis=0)
    cosines = np.divide((seen * true).sum(axis=0), lengths, out=np.ones_like(lengths), where=lengths > 0)
    return Quality(
        ergas=float(100.0 / ratio * np.sqrt(relative.mean())),
        sam_degrees=float(np.rad2deg(np.arccos(np.clip(cosines, -1.0, 1.0))).mean()),
        q=_q(image, truth, valid),
    )


def _q(image: F32, truth: F32, valid: Mask) -> float:
    """Return the mean Q over bands and completely valid blocks, or over all valid pixels if no block is valid."""
    height, width = valid.shape
    corners = [(y, x) for y in range(0, height - Q_BLOCK + 1, Q_BLOCK) for x in range(0, width - Q_BLOCK + 1, Q_BLOCK)]
    blocks = [np.s_[y : y + Q_BLOCK, x : x + Q_BLOCK] for y, x in corners]
    parts: list[Any] = [block for block in blocks if valid[block].all()] or [valid]
    pairs = [
        (one[part].ravel().astype(np.float64), two[part].ravel().astype(np.float64))
        for one, two in zip(image, truth, strict=True)
        for part in parts
    ]
    return float(np.mean([_q_of(one, two) for one, two in pairs]))


def _q_of(one: npt.NDArray[np.float64], two: npt.NDArray[np.float64]) -> float:
    means = one.mean(), two.mean()
    below = (one.var() + two.var()) * (means[0] ** 2 + means[1] ** 2)
    if not below:
        return 1.0 if np.array_equal(one, two) else 0.0
    covariance = ((one - means[0]) * (two - means[1])).mean()
    return float(4.0 * covariance * means[0] * means[1] / below)


def reduced_resolution(coarse_bands: F32, pan: F32, *, ratio: int, coarse_valid: Mask) -> tuple[Quality, Quality]:
    """Return the quality of sharpened and of interpolated bands after Wald, Ranchin and Mangolini (PE&RS 63(6), 1997).

    All images are `ratio` r times coarser, so that the truth is known: coarse_bands (C, h, w), with pan (h r, w r).
    """
    count, height, width = coarse_bands.shape
    height, width = height // ratio * ratio, width // ratio * ratio  # complete pixels of the coarsest grid
    truth, valid = coarse_bands[:, :height, :width], coarse_valid[:height, :width]
    coarse_pan = averaged(pan[: height * ratio, : width * ratio], ratio)  # (h, w)
    coarsest = averaged(truth, ratio)  # (C, h / r, w / r)
    coarsest_valid = averaged(valid.astype(np.float32), ratio) == 1.0
    inner = _inner(coarsest_valid, ratio)
    expanded = np.stack([scipy.ndimage.zoom(band, ratio, order=1, mode="nearest", grid_mode=True) for band in coarsest])
    sharpened = gsa(
        expanded,
        coarse_pan,
        coarse_bands=coarsest,
        coarse_pan=averaged(coarse_pan, ratio),
        valid=inner,
        coarse_valid=coarsest_valid,
    )
    assert count == len(sharpened)
    return (
        quality(sharpened, truth, ratio=ratio, valid=inner),
        quality(expanded, truth, ratio=ratio, valid=inner),
    )


def judgeable(coarse_valid: Mask, ratio: int) -> bool:
    """Return whether reduced resolution leaves pixels with valid neighbors."""
    height, width = (side // ratio * ratio for side in coarse_valid.shape)
    coarsest = averaged(coarse_valid[:height, :width].astype(np.float32), ratio) == 1.0
    return bool(_inner(coarsest, ratio).any())


def _inner(coarsest_valid: Mask, ratio: int) -> Mask:
    """Return a mask (h, w), true if the coarser pixel (h / r, w / r) and its neighbors are valid."""
    blocks = np.kron(coarsest_valid, np.ones((ratio, ratio), dtype=bool))
    return np.asarray(scipy.ndimage.binary_erosion(blocks, iterations=ratio), dtype=np.bool_)


def averaged(image: npt.NDArray[np.float32], ratio: int) -> F32:
    """Average squares of `ratio` pixels: (..., H, W) to (..., H / r, W / r), for sides divisible by `ratio`."""
    *front, height, width = image.shape
    blocks = image.reshape(*front, height // ratio, ratio, width // ratio, ratio)
    return np.asarray(blocks.mean(axis=(-3, -1), dtype=np.float32))
