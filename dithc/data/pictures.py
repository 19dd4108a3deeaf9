"""The one place Pillow enters: pictures read as RGB, cropped as the ImageNet protocol asks, and written."""

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from dithc.data.files import open_regular
from dithc.log import UserError, problem
from dithc.runs import atomic_write

Pixels = npt.NDArray[np.uint8]
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "PPM", "TIFF")
"""What a picture may be, whatever its name says; Pillow knows others, some of which start programs (EPS)."""


def read_rgb(path: Path) -> Pixels:
    """Reads a picture of any mode as RGB; orientation tags are ignored and alpha is dropped, as the protocol does.

    Returns:
        uint8 (H, W, 3); 16-bit grey levels are divided by 257, so that 65535 becomes 255.

    Raises:
        UserError: the file is missing, no regular file, cut short, no picture, or of a floating-point mode; it names the path.
    """
    with open_regular(path) as file:
        try:
            with Image.open(file, formats=FORMATS) as image:
                image.load()
                rgb = _as_rgb(image)
        except MemoryError:
            raise
        except Exception as error:  # decoders of hostile pictures end in errors of many types
            raise _unreadable(path, got=str(error).replace(repr(file), "it") or type(error).__name__) from error
    return np.asarray(rgb, dtype=np.uint8)  # (H, W, 3)


def center_crop(rgb: Pixels, size: int) -> Pixels:
    """Scales the short side to `size` and cuts the middle square, as ADM (Dhariwal and Nichol 2021) prepares ImageNet.

    Halves with a box filter while the short side is at least 2 * size, then one bicubic step to short side = size (up
    for small pictures), then the central size x size window, rounding its corner down.

    Args:
        rgb: uint8 (H, W, 3).
        size: side of the result in pixels, at least 1.

    Returns:
        uint8 (size, size, 3).
    """
    if size < 1:
        raise problem("the crop size is wrong", got=size, expected="at least 1 pixel", remedy="set a positive size")
    image = Image.fromarray(rgb)
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), resample=Image.Resampling.BOX)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    image = image.resize((width, height), resample=Image.Resampling.BICUBIC)
    top, left = (height - size) // 2, (width - size) // 2
    return np.asarray(image, dtype=np.uint8)[top : top + size, left : left + size]  # (size, size, 3)


def write_png(path: Path, pixels: Pixels) -> None:
    """Writes uint8 (H, W, 3) or grey (H, W) as PNG, atomically."""
    atomic_write(path, _encoded(pixels, "PNG", optimize=False))


def write_jpeg(path: Path, pixels: Pixels, *, quality: int = 92) -> None:
    """Writes uint8 (H, W, 3) or grey (H, W) as JPEG, atomically; grey stays a one-channel file."""
    atomic_write(path, _encoded(pixels, "JPEG", quality=quality))


def _encoded(pixels: Pixels, kind: Literal["PNG", "JPEG"], **options: Any) -> bytes:
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise ValueError(f"a picture is uint8 (H, W, 3) or (H, W), got {pixels.dtype} {pixels.shape}; convert it first")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format=kind, **options)
    return buffer.getvalue()


def _as_rgb(image: Image.Image) -> Image.Image:
    """Converts every mode to 8-bit RGB; Pillow itself would clip 16-bit grey at 255 instead of scaling it."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError(f"32-bit grey levels {levels.min()}..{levels.max()}, which have no agreed range")
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels, which have no agreed range")
    return image.convert("RGB")


def _unreadable(path: Path, *, got: str) -> UserError:
    return problem(
        f"{path} cannot be read as a picture",
        got=got,
        expected="a whole JPEG, PNG or TIFF file of 8-bit or 16-bit pixels",
        remedy="copy the file again from its source, or take it out of the folder",
    )
