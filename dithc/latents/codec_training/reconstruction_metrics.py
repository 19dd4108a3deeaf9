"""Quality measures of reconstructions: by band, by structure and by spectrum.

Legend: N images, C bands, H, W image.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

RANGE = 2.0  # width of the scaled range [-1, 1]
SSIM_WINDOW = 7
SSIM_CONSTANTS = (0.01, 0.03)
VEGETATION = (("B08", "B04"), ("NIR", "R"))  # near infrared and red bands, as named by the readers

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Batches of tiles and their reconstructions, each float32 (N, C, H, W) in [-1, 1]."""


def measure(pairs: Pairs, *, bands: list[str], physical: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Measure reconstructions over all pixels of at least one image; `physical` converts scaled units (N, C, H, W).

    Returns:
        `psnr_db` (in dB over the range 2, all bands), `psnr_db_by_band`, `ssim` (mean of bands), `spectral_angle_deg` (mean
        over pixels; None for one band) and `ndvi_error` (mean absolute difference of NDVI; None without red and near
        infrared).
    """
    squares = torch.zeros(len(bands), dtype=torch.float64)
    pixels, images, structure, angle, index = 0, 0, 0.0, 0.0, 0.0
    vegetation = next((pair for pair in VEGETATION if set(pair) <= set(bands)), None)
    for tile, reconstruction in pairs:
        squares += (tile - reconstruction).double().square().sum(dim=(0, 2, 3))
        structure += float(ssim(tile, reconstruction).double().sum())
        real, decoded = physical(tile).double(), physical(reconstruction).double()
        # Angles between the spectra of each pixel (Kruse et al. 1993).
        cosine = functional.cosine_similarity(real, decoded, dim=1, eps=1e-12).clamp(-1.0, 1.0)  # (N, H, W)
        angle += float(torch.acos(cosine).sum())
        if vegetation is not None:
            places = [bands.index(band) for band in vegetation]
            index += float((_vegetation_index(real, places) - _vegetation_index(decoded, places)).abs().sum())
        images += len(tile)
        pixels += tile.shape[0] * tile.shape[2] * tile.shape[3]
    return {
        "psnr_db": _decibels(float(squares.mean()) / pixels),
        "psnr_db_by_band": {band: _decibels(float(value) / pixels) for band, value in zip(bands, squares, strict=True)},
        "ssim": structure / images,
        "spectral_angle_deg": math.degrees(angle / pixels) if len(bands) > 1 else None,
        "ndvi_error": index / pixels if vegetation is not None else None,
    }


def ssim(x: Tensor, y: Tensor) -> Tensor:
    """Return structural similarity (N) of x and y (N, C, H, W) over a range of 2 (Wang et al. 2004, equation 13).

    The mean is over bands and windows. Windows are uniform, 7 x 7 pixels (or the size of a smaller image) and inside
    the image. Moments are unbiased.
    """
    side = min(SSIM_WINDOW, *x.shape[-2:])
    count = side * side
    c1, c2 = ((constant * RANGE) ** 2 for constant in SSIM_CONSTANTS)
    x, y = x.double(), y.double()
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = (
        functional.avg_pool2d(value, side, stride=1) for value in (x, y, x * x, y * y, x * y)
    )
    unbiased = count / max(1, count - 1)
    var_x, var_y = (mean_xx - mean_x**2) * unbiased, (mean_yy - mean_y**2) * unbiased
    covariance = (mean_xy - mean_x * mean_y) * unbiased
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    places: Tensor = similarity / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))  # (N, C, ...)
    return places.flatten(1).mean(dim=1)  # (N)


def _decibels(square: float) -> float:
    return 10.0 * math.log10(RANGE**2 / max(square, 1e-12))


def _vegetation_index(x: Tensor, places: list[int]) -> Tensor:
    """Return the normalized difference vegetation index, (N, H, W); 0 if both bands are near zero."""
    infrared, red = (x[:, place].clamp(min=0.0) for place in places)
    total = infrared + red
    return torch.where(total > 1e-9, (infrared - red) / total.clamp(min=1e-9), torch.zeros_like(total))
