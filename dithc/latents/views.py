"""The orientations of a tile: itself and its mirror image, and the quarter turns of both."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NUM_VIEWS = 8


def view_of(images: npt.NDArray[Any], view: int) -> npt.NDArray[Any]:
    """View 0 to 7 of square images (..., H, W), without a copy: odd ones are mirrored, each two make another quarter turn."""
    mirrored = images[..., ::-1] if view % 2 else images
    return np.rot90(mirrored, view // 2, axes=(-2, -1))


def turned(images: torch.Tensor, view: int) -> torch.Tensor:
    """As `view_of`, of a tensor (..., H, W), with gradients."""
    mirrored = images.flip(-1) if view % 2 else images
    return torch.rot90(mirrored, view // 2, dims=(-2, -1))
