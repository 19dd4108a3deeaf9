"""Images as dithc decodes and crops them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dithc.data.images import cropped, decoded, read_file

Pixels = npt.NDArray[np.uint8]


def read_rgb(path: Path) -> Pixels:
    """Return the pixels (H, W, 3) of an image as dithc decodes it."""
    return np.asarray(decoded(read_file(path), path)[0])


def center_crop(rgb: Pixels, size: int) -> Pixels:
    """Return the crop (size, size, 3) of dithc."""
    return cropped(Image.fromarray(rgb), size).transpose(1, 2, 0)
