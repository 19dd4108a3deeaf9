"""Arrangement of images in a mosaic.

Legend: n images, S side of an image, H, W mosaic.
"""

import numpy as np
from numpy.typing import NDArray

COLUMNS = 4
SHOWN = COLUMNS * COLUMNS
GAP, GREY = 2, 150  # pixels between images, and their gray level, which suits light and dark pages
MOST_SIDE = 256  # pixels of an image; larger images are averaged over blocks of pixels


def mosaic(images: NDArray[np.uint8], *, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """Arrange images (n, 3, S, S) in rows as a mosaic (H, W, 3) with gray gaps."""
    images = _smaller(images)
    count, side = len(images), images.shape[-1]
    columns = min(columns, count)
    rows = -(-count // columns)
    picture = np.full((rows * (side + GAP) - GAP, columns * (side + GAP) - GAP, 3), GREY, np.uint8)
    for place, image in enumerate(images):
        top, left = (part * (side + GAP) for part in divmod(place, columns))
        picture[top : top + side, left : left + side] = image.transpose(1, 2, 0)
    return picture


def _smaller(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    factor = -(-images.shape[-1] // MOST_SIDE)
    side = images.shape[-1] // factor * factor
    if factor == 1:
        return images
    blocks = images[..., :side, :side].reshape(len(images), 3, side // factor, factor, side // factor, factor)
    averaged: NDArray[np.uint8] = blocks.mean(axis=(3, 5)).round().astype(np.uint8)
    return averaged
