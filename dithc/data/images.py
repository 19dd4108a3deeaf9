"""Image decoding, cropping by the ImageNet protocol, and encoding: the only use of Pillow."""

import io
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from dithc.core.artifacts import atomic_write
from dithc.core.logging import UserError, user_error
from dithc.data.file_checks import check_memory, max_pixel_bytes, open_regular

Pixels = npt.NDArray[np.uint8]
FORMATS = {
    "JPEG": (".jpeg", ".jpg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
    "TIFF": (".tif", ".tiff"),
}
"""Image formats that are decoded, and their suffixes. Further formats of Pillow start programs (EPS)."""
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
DAMAGE = re.compile(r"truncat|broken|corrupt|damaged|checksum|unexpected end|not enough|incomplete|early", re.I)
"""Messages of decoders about content that is lost."""
NOTES = ("grayscale", "enlarged", "rotated", "alpha", "animated", "16-bit", "cmyk")
"""The protocol ignores an orientation tag (rotated), and uses the first of several frames (animated)."""
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
ORIENTATION_TAG, UPRIGHT = 0x0112, 1
GAP = 2  # pixels between the images of a mosaic
BITS, PHOTOMETRIC, SAMPLES, PLANAR, SAMPLE_FORMAT = 258, 262, 277, 284, 339
SAMPLE_TYPES = {2: "signed integer", 3: "floating-point", 5: "complex integer", 6: "complex"}
"""Values of SampleFormat without an agreed range, TIFF 6.0, section 19."""
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
# Pillow rejects PNG files with more than 1 MiB of text or color profile in a chunk, and 64 MiB in total.
PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = 64 << 20, 256 << 20


class PreparedImage(NamedTuple):
    """An image as training uses it."""

    pixels: Pixels  # (3, size, size)
    notes: tuple[str, ...]  # losses and changes, of `NOTES`


def prepare(content: bytes, size: int, *, path: Path) -> PreparedImage:
    """Decode an image as RGB, scaled and cropped to a square of `size` pixels; UserError, naming `path`, if it is unusable."""
    image, notes = decoded(content, path)
    ratio = max(image.size) // min(image.size)
    description = f"{image.height} x {image.width}, short side scaled to {size}"
    check_memory(path, 4 * size * size * ratio, description=description)
    crop = cropped(image, size)  # (3, size, size)
    # The crop of a gray image is gray too, and is cheaper to test.
    notes["grayscale"] = _is_gray(crop.transpose(1, 2, 0)) and _is_gray(np.asarray(image))
    notes["enlarged"] = min(image.size) < size
    return PreparedImage(crop, tuple(note for note in NOTES if notes.get(note)))


def read_file(path: Path) -> bytes:
    """Return the bytes of an image file; raise UserError if it is missing, not regular, or larger than the memory."""
    with open_regular(path) as file:
        check_memory(path, path.stat().st_size, description="a file")
        return file.read()


def cropped(image: Image.Image, size: int) -> Pixels:
    """Return the middle square (3, size, size), after scaling the short side as ADM (Dhariwal and Nichol 2021).

    A box filter halves the image while the short side is at least 2 * size. One bicubic step to short side = size
    follows (up for small images), then the central window, with its corner rounded down.
    """
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), resample=Image.Resampling.BOX)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    top, left = (height - size) // 2, (width - size) // 2
    image = image.resize((width, height), resample=Image.Resampling.BICUBIC)
    rgb = np.asarray(image, dtype=np.uint8)[top : top + size, left : left + size]
    return np.ascontiguousarray(rgb.transpose(2, 0, 1))


def _is_gray(rgb: Pixels) -> bool:
    """Return whether all pixels (H, W, 3) are gray; a sparse sample is tested first."""
    return all(
        bool((part[..., 0] == part[..., 1]).all() and (part[..., 1] == part[..., 2]).all())
        for part in (rgb[::16, ::16], rgb)
    )


def write_png(path: Path, pixels: Pixels) -> None:
    """Write uint8 RGB (H, W, 3) or gray (H, W) as PNG, atomically."""
    atomic_write(path, _encoded(pixels, "PNG", optimize=False))


def mosaic(images: Pixels, *, columns: int, level: int = 255) -> Pixels:
    """Arrange images (n, 3, H, W) in rows as one image (rows, columns, 3), with gaps of a gray level between them."""
    height, width = images.shape[2] + GAP, images.shape[3] + GAP
    picture = np.full((-(-len(images) // columns) * height - GAP, columns * width - GAP, 3), level, np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * height, place % columns * width
        picture[top : top + height - GAP, left : left + width - GAP] = image.transpose(1, 2, 0)
    return picture


def downsample(images: Pixels, max_side: int) -> Pixels:
    """Average images (n, 3, S, S) over blocks, to at most `max_side` pixels; sides that no block fills are cut."""
    factor = -(-images.shape[-1] // max_side)
    side = images.shape[-1] // factor * factor
    if factor == 1:
        return images
    blocks = images[..., :side, :side].reshape(len(images), 3, side // factor, factor, side // factor, factor)
    averaged: Pixels = blocks.mean(axis=(3, 5)).round().astype(np.uint8)
    return averaged


def write_jpeg(path: Path, pixels: Pixels, *, quality: int = 92) -> None:
    """Write uint8 RGB (H, W, 3) or gray (H, W) as JPEG, atomically; gray stays a one-channel file."""
    atomic_write(path, _encoded(pixels, "JPEG", quality=quality))


def _encoded(pixels: Pixels, kind: Literal["PNG", "JPEG"], **options: Any) -> bytes:
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise ValueError(
            f"an image must be uint8 (H, W, 3) or (H, W), got {pixels.dtype} {pixels.shape}; convert it first"
        )
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format=kind, **options)
    return buffer.getvalue()


def decoded(content: bytes, path: Path) -> tuple[Image.Image, dict[str, bool]]:
    file = io.BytesIO(content)
    Image.MAX_IMAGE_PIXELS = max_pixel_bytes() // 8  # Pillow rejects twice as many pixels, of 4 bytes each
    try:
        with Image.open(file, formats=tuple(FORMATS)) as image:
            check_memory(path, 4 * image.width * image.height, description=f"{image.height} x {image.width}")
            mode, is_deep = image.mode, _is_deep(image)
            if isinstance(image, TiffImagePlugin.TiffImageFile) and (fault := _tiff_fault(image.tag_v2, image.tile)):
                raise ValueError(fault)
            image.load()
            rgb = _as_rgb(image)
            return rgb, {"16-bit": is_deep, **_notes(image, mode)}
    except (MemoryError, UserError):
        raise
    except Exception as error:  # decoders raise many exception types for hostile images
        raise _unreadable(path, content, error, name=repr(file)) from error


def _notes(image: Image.Image, mode: str) -> dict[str, bool]:
    notes = {"alpha": mode in ALPHA_MODES or "transparency" in image.info, "cmyk": mode == "CMYK"}
    with suppress(Exception):  # tags and later frames may be damaged although the pixels are intact
        notes["rotated"] = image.getexif().get(ORIENTATION_TAG, UPRIGHT) != UPRIGHT
    with suppress(Exception):
        notes["animated"] = bool(getattr(image, "is_animated", False))
    return notes


def _is_deep(image: ImageFile.ImageFile) -> bool:
    """Return whether the file has 16 bits per sample; Pillow itself reduces colors to 8 bits and keeps gray."""
    levels = [tile[3][1] for tile in image.tile if tile[0].startswith("ppm") and isinstance(tile[3], tuple)]
    return (
        image.mode.startswith("I") or any(";16" in str(tile[3]) for tile in image.tile) or max(levels, default=0) > 255
    )


def _tiff_fault(tags: Mapping[int, Any], tiles: Iterable[Any] = ()) -> str:
    """Return why Pillow cannot read the pixels of a TIFF file, or would misread them; empty if it reads them."""
    bits, types, count = max(tags.get(BITS, (1,))), {*tags.get(SAMPLE_FORMAT, ())}, tags.get(SAMPLES, 1)
    if types & SAMPLE_TYPES.keys() or bits > 16:
        type_name = "".join(SAMPLE_TYPES.get(code, "") for code in types) or "integer"
        return f"{bits}-bit {type_name} pixels, which have no agreed range"
    if 8 < bits < 16:
        return f"{bits}-bit pixels, which Pillow does not scale"
    if count > 2 and tags.get(PHOTOMETRIC) in (0, 1):
        return f"a TIFF file of {count} {bits}-bit samples per pixel with PhotometricInterpretation gray instead of RGB"
    if count > 1 and bits > 8 and tags.get(PLANAR) == 2 and any(tile[0] == "raw" for tile in tiles):
        return "uncompressed 16-bit samples in separate planes (PlanarConfiguration 2), which Pillow misreads"
    return ""


def _as_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to 8-bit RGB; Pillow clips 16-bit gray at 255 instead of scaling it."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64)  # up to 65535
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels, which have no agreed range")
    return image if image.mode == "RGB" else image.convert("RGB")


def _unreadable(path: Path, content: bytes, error: Exception, *, name: str) -> UserError:
    got = str(error).replace(name, "it") or type(error).__name__
    expected = "a JPEG, PNG or TIFF file, gray or RGB, of unsigned 8-bit or 16-bit pixels"
    fix = "convert it to 8-bit PNG or JPEG, or list it in `source.exclude`"
    if "MAX_TEXT" in got:
        expected = (
            f"at most {PngImagePlugin.MAX_TEXT_CHUNK >> 20} MiB of text or color profile per chunk, and "
            f"{PngImagePlugin.MAX_TEXT_MEMORY >> 20} MiB per file"
        )
        fix = "remove the metadata of the image (mogrify -strip), or list it in `source.exclude`"
    elif isinstance(error, Image.DecompressionBombError):
        expected = f"at most {max_pixel_bytes() // 4} pixels, which fill half of the memory"
        fix = "scale it down, cut it, or stage it on a machine with more memory"
    elif not content or DAMAGE.search(got):
        fix = "copy the file again from its source, or list it in `source.exclude`"
    elif isinstance(error, UnidentifiedImageError):
        got = _tiff_diagnosis(content) or f"an unknown or unsupported format, first bytes {content[:12]!r}"
    return user_error(f"{path} cannot be read as an image", got=got, expected=expected, fix=fix)


def _tiff_diagnosis(content: bytes) -> str:
    """Return the fault of a TIFF file that Pillow does not open; empty for other files."""
    with suppress(Exception):
        tags = TiffImagePlugin.ImageFileDirectory_v2(content[: 16 if 43 in content[2:4] else 8])  # 43: BigTIFF
        file = io.BytesIO(content)
        file.seek(tags.next)
        tags.load(file)
        return _tiff_fault(tags) or "a TIFF file of an unsupported layout"
    return ""
