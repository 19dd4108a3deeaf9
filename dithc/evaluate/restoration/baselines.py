"""Simple baselines of restoration: fills of hidden pixels, and interpolation of coarse bands.

Legend: C bands, H, W image, T dates, h, w coarse image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray

from dithc.diffusion.restoration import Resampling

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
INCOMPLETE = 1e-3  # largest share of gaps in an observed coarse pixel


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Observed part of an image: pixels of fine bands, and coarse pixels of the bands in `coarse`.

    Attributes:
        x: (C, H, W), true values.
        pixels: (C, H, W), directly observed pixels.
        gaps: (H, W), pixels that no band observes.
        coarse: Factor between the coarse and the fine grid, by band.
        mtf: Modulation of the sensor at the Nyquist frequency of the coarse grid; None for block means.
    """

    x: Array
    pixels: Mask
    gaps: Mask
    coarse: Mapping[int, int]
    mtf: float | None = None

    def bands(self, factor: int) -> list[int]:
        """Return the bands with a factor."""
        return [band for band, other in self.coarse.items() if other == factor]

    def low(self, x: Array, factor: int) -> Array:
        """Return images (n, H, W) as the sensor observes them on the coarse grid (n, h, w), float64."""
        operator = Resampling((len(x), x.shape[-2], x.shape[-1]), factor, self.mtf)
        grid = x.shape[-2] // factor, x.shape[-1] // factor
        values = operator.apply(torch.from_numpy(np.array(x, np.float64))[None])[0]
        return np.asarray(values.reshape(len(x), *grid).numpy())

    def clear(self, factor: int) -> Mask:
        """Return the observed coarse pixels (h, w)."""
        return np.asarray(self.low(self.gaps[None].astype(float), factor)[0] < INCOMPLETE)

    def interpolated(self, order: int) -> Array:
        """Return the coarse bands, interpolated on the grid of the image; other bands and bands without pixels are NaN."""
        image = np.full(self.x.shape, np.nan)
        for factor in set(self.coarse.values()):
            bands = self.bands(factor)
            fine = interpolate(nearest_fill(self.low(self.x[bands], factor), self.clear(factor)), factor, order=order)
            missing = [(0, length - side) for length, side in zip(self.x.shape, fine.shape, strict=True)]
            image[bands] = np.pad(fine, [(0, 0), *missing[1:]], mode="edge")
        return image


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


def date_fill(x: Array, valid: Mask, dates: Sequence[Array], dates_valid: Sequence[Mask]) -> Array:
    """Fill hidden pixels from T other dates (C, H, W), the nearest in time first, then from the nearest pixel.

    `dates_valid`, (H, W) or (C, H, W), are observed pixels of the dates.
    """
    filled, mask = x.copy(), np.broadcast_to(valid, x.shape).copy()
    for date, observed in zip(dates, dates_valid, strict=True):
        new = ~mask & observed
        filled[new], mask = date[new], mask | new
    return nearest_fill(filled, mask)


def interpolate(coarse: Array, factor: int, *, order: int) -> Array:
    """Interpolate (C, h, w) to (C, h factor, w factor) with aligned pixel edges.

    Order 0 repeats pixels, 1 is bilinear, 3 a cubic spline (bicubic).
    """
    fine = [scipy.ndimage.zoom(band, factor, order=order, mode="nearest", grid_mode=True) for band in coarse]
    return np.stack(fine)


def simple_fills(seen: Observed) -> dict[str, Array]:
    """Return fills (C, H, W) that need neither training nor further data, by name; NaN in bands where a fill is undefined."""
    fine = nearest_fill(seen.x, seen.pixels)
    fills = {"nearest neighbor": 0, "bilinear": 1, "bicubic": 3}
    filled = {name: np.array(seen.interpolated(order)) for name, order in fills.items()}
    filled["nearest neighbor"] = np.where(np.isnan(filled["nearest neighbor"]), fine, filled["nearest neighbor"])
    return filled | {"band mean": mean_fill(seen.x, seen.pixels)}
