"""Quality measures of reconstructions: by band, by structure and by spectrum.

Legend: N images, C bands, H, W image.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dithc.core.image_quality import spectral_angles, structural_similarity

RANGE = 2.0  # width of the scaled range [-1, 1]
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
        windows = structural_similarity(tile.numpy(), reconstruction.numpy(), data_range=RANGE)  # (N, C, ...)
        structure += float(windows.mean()) * len(tile)
        real, decoded = physical(tile).double(), physical(reconstruction).double()
        angle += float(np.nan_to_num(spectral_angles(real.numpy(), decoded.numpy(), axis=1), nan=90.0).sum())
        if vegetation is not None:
            places = [bands.index(band) for band in vegetation]
            index += float((_vegetation_index(real, places) - _vegetation_index(decoded, places)).abs().sum())
        images += len(tile)
        pixels += tile.shape[0] * tile.shape[2] * tile.shape[3]
    return {
        "psnr_db": _decibels(float(squares.mean()) / pixels),
        "psnr_db_by_band": {band: _decibels(float(value) / pixels) for band, value in zip(bands, squares, strict=True)},
        "ssim": structure / images,
        "spectral_angle_deg": angle / pixels if len(bands) > 1 else None,
        "ndvi_error": index / pixels if vegetation is not None else None,
    }


def psnr(pairs: Pairs) -> float:
    """Return the PSNR in dB over the range 2 and all pixels and bands."""
    squares, values = 0.0, 0
    for tile, reconstruction in pairs:
        squares += float((tile - reconstruction).double().square().sum())
        values += tile.numel()
    return _decibels(squares / values)


def _decibels(square: float) -> float:
    return 10.0 * math.log10(RANGE**2 / max(square, 1e-12))


def _vegetation_index(x: Tensor, places: list[int]) -> Tensor:
    """Return the normalized difference vegetation index, (N, H, W); 0 if both bands are near zero."""
    infrared, red = (x[:, place].clamp(min=0.0) for place in places)
    total = infrared + red
    return torch.where(total > 1e-9, (infrared - red) / total.clamp(min=1e-9), torch.zeros_like(total))
