"""Orientations of a tile: identity and mirror image, with quarter turns of both."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NUM_VIEWS = 8


def apply_view(images: npt.NDArray[Any], view: int) -> npt.NDArray[Any]:
    """Return view 0 to 7 of square images (..., H, W) without a copy: odd views mirrored, v // 2 quarter turns."""
    mirrored = images[..., ::-1] if view % 2 else images
    return np.rot90(mirrored, view // 2, axes=(-2, -1))


def turned(images: torch.Tensor, view: int) -> torch.Tensor:
    """Return `apply_view` a tensor (..., H, W), with gradients."""
    mirrored = images.flip(-1) if view % 2 else images
    return torch.rot90(mirrored, view // 2, dims=(-2, -1))
