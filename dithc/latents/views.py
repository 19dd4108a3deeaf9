"""Orientations of a tile: identity and mirror image, with quarter turns of both."""

import torch

NUM_VIEWS = 8


def apply_view(images: torch.Tensor, view: int) -> torch.Tensor:
    """Return view 0 to 7 of square images (..., H, W), with gradients: odd views mirrored, v // 2 quarter turns."""
    mirrored = images.flip(-1) if view % 2 else images
    return torch.rot90(mirrored, view // 2, dims=(-2, -1))
