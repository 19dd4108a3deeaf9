"""Synthetic defects of images with random levels, which a classifier learns in addition to classes.

A defect maps intact images to fully degraded images. Its level interpolates between both. Predicting type and level of
a distortion teaches features of quality without human ratings (Madhusudana et al., Image Quality Assessment using
Contrastive Learning, arXiv 2110.13266, section III). Blocks begin at the corner of an image, like the patches of a
network.

Legend: N batch, C channels, H height, W width, D defects.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

DEFECT_SHARE = 0.8  # share of images with a defect
STRENGTH = 64.0  # standard deviation of the change of pixels 0..255 at level 1
MIN_CONTRAST = 0.3

Defect = Callable[[Tensor, Generator], Tensor]


def damaged(images: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Change brightness and contrast of float images (N, C, H, W) in 0..255, and add one defect to most of them.

    Returns images of the same shape and range, and the level of every defect in 0..1 (N, D).
    """
    count = len(images)
    images = _vary_display(images, generator)
    kinds = torch.randint(len(DEFECTS), (count,), generator=generator)  # (N,)
    levels = torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) < DEFECT_SHARE)  # (N,)
    result = images.clone()
    for number, defect in enumerate(DEFECTS.values()):
        rows = torch.nonzero(kinds == number).flatten()
        if len(rows):
            part = images[rows]
            degraded = defect(part, generator)
            levels[rows] *= (degraded != part).flatten(1).any(dim=1)  # small tiles have no blocks to shuffle
            result[rows] = torch.lerp(part, degraded, levels[rows].view(-1, 1, 1, 1))
    return result.clamp(0, 255), levels[:, None] * functional.one_hot(kinds, len(DEFECTS))


def _vary_display(images: Tensor, generator: Generator) -> Tensor:
    """Change brightness and contrast as displays of other datasets would."""
    share = MIN_CONTRAST + (1 - MIN_CONTRAST) * torch.rand(len(images), 1, 1, 1, generator=generator)
    gray = 255 * torch.rand(len(images), 1, 1, 1, generator=generator)
    return torch.lerp(gray, images, share)


def _block_means(images: Tensor, side: int) -> Tensor:
    """Return averages of blocks, truncated at the far border (N, C, H / side, W / side)."""
    return functional.avg_pool2d(images, side, ceil_mode=True)


def _repeat_blocks(blocks: Tensor, side: int, target: Tensor) -> Tensor:
    """Repeat one value over all pixels of a block (N, C, H, W)."""
    repeated = blocks.repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)
    return repeated[:, :, : target.shape[2], : target.shape[3]]


def _mosaic(side: int) -> Defect:
    """Return a defect with blocks of one color."""
    return lambda images, _: _repeat_blocks(_block_means(images, side), side, target=images)


def _lattice(side: int) -> Defect:
    """Return a defect with blocks that are shifted in every channel."""

    def defect(images: Tensor, generator: Generator) -> Tensor:
        shifts = STRENGTH * torch.randn(_block_means(images, side).shape, generator=generator)
        return images + _repeat_blocks(shifts, side, target=images)

    return defect


def _shuffle(side: int) -> Defect:
    """Return a defect with intact blocks in another order."""

    def defect(images: Tensor, generator: Generator) -> Tensor:
        height, width = (length // side * side for length in images.shape[2:])
        result = images.clone()
        if height and width:
            blocks = functional.unfold(images[:, :, :height, :width], side, stride=side)  # (N, C side side, blocks)
            order = torch.rand(len(images), blocks.shape[2], generator=generator).argsort(dim=1)  # (N, blocks)
            shuffled = blocks.gather(2, order[:, None].expand_as(blocks))
            result[:, :, :height, :width] = functional.fold(shuffled, (height, width), side, stride=side)
        return result

    return defect


def _blur(side: int) -> Defect:
    """Return a defect without details smaller than a block, and without block edges."""
    return lambda images, _: functional.interpolate(
        _block_means(images, side), size=images.shape[2:], mode="bilinear", align_corners=False
    )


def _add_noise(images: Tensor, generator: Generator) -> Tensor:
    return images + STRENGTH * torch.randn(images.shape, generator=generator)


def _add_ringing(images: Tensor, generator: Generator) -> Tensor:
    """Add overshoot at edges."""
    return images + 2 * (images - _blur(2)(images, generator))


DEFECTS: dict[str, Defect] = {
    **{f"mosaic-{side}": _mosaic(side) for side in (2, 4, 8)},
    **{f"lattice-{side}": _lattice(side) for side in (2, 4, 8)},
    **{f"shuffle-{side}": _shuffle(side) for side in (4, 8, 16)},
    **{f"blur-{side}": _blur(side) for side in (2, 4, 8)},
    "noise": _add_noise,
    "ringing": _add_ringing,
}
"""All defects by name. The file of a classifier lists the defects that it learned in this order."""
