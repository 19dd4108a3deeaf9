"""Orthonormal cosine transform (DCT-II) of planes, without padding: a plane continues as its mirror image.

Source: Ahmed et al. 1974, Discrete cosine transform.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.fft
import torch
from torch import Tensor

MATRIX_SIDE = 128  # longest side of planes for which products with matrices are faster than fast transforms


def cosines(x: Tensor) -> Tensor:
    """Return the coefficients of planes (..., H, W), with the same bits for any number of threads."""
    if max(x.shape[-2:]) > MATRIX_SIDE:
        return _transform(x, scipy.fft.dctn)
    rows, columns = (cosine_matrix(side, x.dtype) for side in x.shape[-2:])
    return rows @ (x @ columns.T)


def inverse_cosines(x: Tensor) -> Tensor:
    """Return the planes (..., H, W) of coefficients, with the same bits for any number of threads."""
    if max(x.shape[-2:]) > MATRIX_SIDE:
        return _transform(x, scipy.fft.idctn)
    rows, columns = (cosine_matrix(side, x.dtype) for side in x.shape[-2:])
    return rows.T @ (x @ columns)


@lru_cache(maxsize=8)
def cosine_matrix(side: int, dtype: torch.dtype) -> Tensor:
    """Return the cosines by frequency and pixel, (side, side)."""
    return torch.from_numpy(scipy.fft.dct(np.eye(side), axis=0, norm="ortho")).to(dtype)


def _transform(x: Tensor, transform: Callable[..., Any]) -> Tensor:
    return torch.from_numpy(transform(x.numpy(), axes=(-2, -1), norm="ortho", workers=torch.get_num_threads()))
