"""Simple baselines of restoration: fills of hidden pixels, and interpolation of coarse bands.

Legend: C bands, H, W image, T dates, h, w coarse image.
"""

from collections.abc import Callable

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
Fill = Callable[[Array, Mask], Array]
"""(x (C, H, W), observed pixels (H, W) or (C, H, W)) -> filled (C, H, W); observed values are unchanged."""


def nearest_fill(x: Array, valid: Mask) -> Array:
    """Fill hidden pixels with the nearest observed pixel of the band; NaN in a band without observed pixels."""
    filled = np.full_like(x, np.nan)
    masks = np.broadcast_to(valid, x.shape) if valid.ndim == x.ndim else valid[None]  # (C or 1, H, W)
    for index, mask in enumerate(masks):
        if mask.any():
            places = tuple(scipy.ndimage.distance_transform_edt(~mask, return_distances=False, return_indices=True))
            bands = index if len(masks) == len(x) else slice(None)
            filled[bands] = x[bands][..., *places]
    return filled


def mean_fill(x: Array, valid: Mask) -> Array:
    """Fill hidden pixels with the mean of the observed pixels of the band; NaN in a band without observed pixels."""
    mask = np.broadcast_to(valid, x.shape)
    counts = mask.sum(axis=(1, 2), keepdims=True)  # (C, 1, 1)
    with np.errstate(invalid="ignore"):
        means = np.where(mask, x, 0).sum(axis=(1, 2), keepdims=True, dtype=np.float64) / counts
    return np.where(mask, x, means.astype(x.dtype))


def date_fill(x: Array, valid: Mask, dates: Array, dates_valid: Mask) -> Array:
    """Fill hidden pixels from other dates (T, C, H, W), the nearest in time first, then from the nearest pixel.

    `dates_valid` (T, H, W) or (T, C, H, W) are observed pixels of the dates.
    """
    filled, mask = x.copy(), np.broadcast_to(valid, x.shape).copy()
    for date, observed in zip(dates, dates_valid, strict=True):
        new = ~mask & observed
        filled[new], mask = date[new], mask | new
    return nearest_fill(filled, mask)


FILLS: dict[str, Fill] = {"nearest neighbor": nearest_fill, "band mean": mean_fill}
"""Fills without training or further data."""


def interpolate(coarse: Array, factor: int, *, order: int) -> Array:
    """Interpolate (C, h, w) to (C, h factor, w factor) with aligned pixel edges.

    Order 0 repeats pixels, 1 is bilinear, 3 a cubic spline (bicubic).
    """
    fine = [scipy.ndimage.zoom(band, factor, order=order, mode="nearest", grid_mode=True) for band in coarse]
    return np.stack(fine)
