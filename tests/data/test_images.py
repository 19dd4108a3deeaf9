"""Images: every mode becomes RGB, errors name broken files, and the crop follows the ADM steps exactly."""

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from PIL import Image, PngImagePlugin

from dithc.core.logging import UserError
from dithc.data import images
from dithc.data.images import prepare, write_jpeg, write_png
from tests.inputs.images import center_crop, read_rgb


def write_tiff(path: Path, pixels: np.ndarray, **settings: Any) -> None:
    shape = {"count": pixels.shape[0], "height": pixels.shape[1], "width": pixels.shape[2], "dtype": pixels.dtype.name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **{"driver": "GTiff", **shape, **settings}) as file:
            file.write(pixels)


def _ramp(height: int, width: int) -> np.ndarray:
    """Create an image with columns counted in red, rows in green, and blue 7."""
    rows, columns = np.indices((height, width))
    return np.stack([columns % 256, rows % 256, np.full_like(rows, 7)], axis=-1).astype(np.uint8)


def test_png_reads_back_the_exact_pixels(tmp_path: Path) -> None:
    pixels = _ramp(5, 9)
    write_png(tmp_path / "a.png", pixels)
    assert np.array_equal(read_rgb(tmp_path / "a.png"), pixels)


def test_gray_jpeg_stays_gray_and_reads_as_three_equal_channels(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "g.JPEG", np.full((8, 6), 90, np.uint8))
    with Image.open(tmp_path / "g.JPEG") as image:
        assert image.mode == "L"
    rgb = read_rgb(tmp_path / "g.JPEG")
    assert rgb.shape == (8, 6, 3)
    assert np.array_equal(rgb, np.full((8, 6, 3), 90, np.uint8))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.tiff"
    if mode in ("LA", "P"):
        path = path.with_suffix(".png")
    Image.fromarray(np.full((4, 5, 3), 255, np.uint8)).convert(mode).save(path)
    rgb = read_rgb(path)
    assert rgb.dtype == np.uint8
    assert rgb.shape == (4, 5, 3)
    assert rgb.min() >= 254


def test_sixteen_bit_gray_is_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 257, 32768, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert read_rgb(tmp_path / "a.png")[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("dtype", "bands", "settings", "cause"),
    [
        ("int32", 1, {}, "32-bit signed integer"),
        ("uint32", 1, {}, "32-bit integer"),
        ("int16", 1, {}, "16-bit signed integer"),
        ("int8", 1, {}, "8-bit signed integer"),
        ("float32", 3, {}, "32-bit floating-point"),
        ("uint16", 1, {"nbits": 12}, "12-bit"),
        ("uint16", 3, {"photometric": "MINISBLACK"}, "PhotometricInterpretation gray"),
        ("uint8", 4, {"photometric": "MINISBLACK", "bigtiff": "YES"}, "PhotometricInterpretation gray"),
        ("uint16", 3, {"photometric": "RGB", "interleave": "band"}, "PlanarConfiguration"),
    ],
)
def test_tiff_files_are_rejected_by_their_type(
    tmp_path: Path, dtype: str, bands: int, settings: Any, cause: str
) -> None:
    """The type decides, because all values may be in 0 to 100."""
    write_tiff(tmp_path / "a.tif", np.full((bands, 8, 8), 100, dtype), **settings)
    with pytest.raises(UserError, match=f"got: .*{cause}"):
        read_rgb(tmp_path / "a.tif")


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("suffix", ["tif", "deflate.tif", "planar.tif", "png", "ppm"])
def test_16_bit_color_images_are_scaled_and_noted(tmp_path: Path, suffix: str, depth: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 1 << depth, (3, 8, 8)).astype(f"uint{depth}")
    path = tmp_path / f"a.{suffix}"
    if suffix == "ppm":
        content = pixels.transpose(1, 2, 0).astype(f">u{depth // 8}").tobytes()
        path.write_bytes(f"P6 8 8 {(1 << depth) - 1}\n".encode() + content)
    else:
        options = {"compress": "deflate"} if suffix.startswith(("deflate", "planar")) else {}
        options |= {"interleave": "band"} if suffix.startswith("planar") else {}
        write_tiff(path, pixels, driver="PNG" if suffix == "png" else "GTiff", photometric="RGB", **options)
    prepared = prepare(path.read_bytes(), 8, path=path)
    assert prepared.notes == (("16-bit",) if depth == 16 else ())
    assert np.abs(prepared.pixels - (pixels / (257 if depth == 16 else 1))).max() <= 1


@pytest.mark.parametrize("content", [b"", b"no picture", b"\xff\xd8\xff\xe0garbage", b"\x89PNG\r\n\x1a\n" + b"x" * 40])
def test_error_for_a_corrupt_image_contains_the_file_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.JPEG").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.JPEG.*\n.*got:"):
        read_rgb(tmp_path / "bad.JPEG")


def test_crop_without_scaling_is_centered_rounding_down() -> None:
    # Short side 8 = size: no scaling. Width 13: left = (13 - 8) // 2 = 2, so columns 2..9.
    crop = center_crop(_ramp(8, 13), 8)
    assert crop[0, :, 0].tolist() == list(range(2, 10))
    assert crop[:, 0, 1].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("height", "width", "size", "halved", "scaled", "left"),
    [
        (15, 15, 8, (15, 15), (8, 8), 0),  # 15 < 2 * 8: no halving
        (33, 50, 16, (25, 16), (25, 16), 4),  # odd sides are halved rounding down
        (375, 500, 256, (500, 375), (341, 256), 42),  # the long side is rounded to the nearest pixel
        (60, 100, 256, (100, 60), (427, 256), 85),
    ],
)
def test_crop_matches_the_adm_steps(
    height: int, width: int, size: int, halved: tuple[int, int], scaled: tuple[int, int], left: int
) -> None:
    image = Image.fromarray(_ramp(height, width))
    image = image if halved == image.size else image.resize(halved, Image.Resampling.BOX)
    expected = np.asarray(image.resize(scaled, Image.Resampling.BICUBIC))[:, left : left + size]
    assert np.array_equal(center_crop(_ramp(height, width), size), expected)


def test_box_filter_halves_images_until_the_short_side_is_below_twice_size() -> None:
    # 32 x 40 -> 16 x 20 -> 8 x 10 (two halvings for size 8), scale 1, left = 1. Red is the column number: the mean of
    # source columns 4k..4k+3 is 4k + 1.5; Pillow rounds 2 x 2 means of integers up: 2k + 0.5 -> 2k + 1 and then
    # (4j + 1 + 4j + 3) / 2 = 4j + 2. The crop starts at column 1 of 10.
    crop = center_crop(_ramp(32, 40), 8)
    assert crop[0, :, 0].tolist() == [4 * j + 2 for j in range(1, 9)]
    assert crop[:, 0, 1].tolist() == [4 * j + 2 for j in range(8)]


@pytest.mark.parametrize("pixels", [np.zeros((4, 4, 3)), np.zeros((4, 4, 4), np.uint8), np.zeros(4, np.uint8)])
def test_write_png_rejects_arrays_other_than_8_bit_images(tmp_path: Path, pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        write_png(tmp_path / "a.png", pixels)
    assert not list(tmp_path.iterdir())


def write_png_with_metadata(path: Path, *, profile: int = 0, text: int = 0) -> Path:
    """Write an image with a color profile and a compressed text of the given sizes."""
    info = PngImagePlugin.PngInfo()
    info.add_text("title", "x" * text, zip=True)
    Image.fromarray(_ramp(8, 8)).save(path, icc_profile=bytes(profile) or None, pnginfo=info)
    return path


@pytest.mark.parametrize("sizes", [{"profile": 3 << 20}, {"text": 3 << 20}])
def test_intact_image_with_large_metadata_is_read(tmp_path: Path, sizes: dict[str, int]) -> None:
    assert np.array_equal(read_rgb(write_png_with_metadata(tmp_path / "a.png", **sizes)), _ramp(8, 8))


def test_unsupported_image_error_contains_limit_or_format_and_no_copy_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"heic.jpg": b"\0\0\0\x18ftypheic" + bytes(40), "page.png": b"<!DOCTYPE html>", "mode.tif": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    Image.fromarray(np.zeros((3, 3), np.float32)).save(tmp_path / "mode.tif")
    expected = {"heic.jpg": "ftypheic", "page.png": "DOCTYPE", "mode.tif": "floating-point"}
    monkeypatch.setattr(images.PngImagePlugin, "MAX_TEXT_CHUNK", 1 << 20)
    write_png_with_metadata(tmp_path / "limit.png", text=2 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(images, "max_pixel_bytes", lambda: 8 * 100)
        write_png(tmp_path / "wide.png", _ramp(40, 40))
        with pytest.raises(UserError, match="1600 pixels") as raised:
            read_rgb(tmp_path / "wide.png")
        assert "copy the file" not in str(raised.value)
    for name, pattern in {**expected, "limit.png": "1 MiB of text or color profile"}.items():
        with pytest.raises(UserError, match=pattern) as raised:
            read_rgb(tmp_path / name)
        assert "copy the file" not in str(raised.value)


def test_image_above_the_default_pixel_limit_of_pillow_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (8, 8)).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[16:24] = (20_000).to_bytes(4) + (10_000).to_bytes(4)
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match="truncated"):  # only the pixels are missing
        read_rgb(tmp_path / "a.png")


@pytest.mark.parametrize("size", [0, 1, 30, 100])
def test_truncated_image_error_suggests_a_new_copy(tmp_path: Path, size: int) -> None:
    write_png(tmp_path / "a.png", _ramp(64, 64))
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:size])
    with pytest.raises(UserError) as raised:
        read_rgb(tmp_path / "a.png")
    assert ("copy the file" in str(raised.value)) == (size in (0, 100))


def test_suffixes_match_those_registered_by_pillow() -> None:
    Image.init()
    found = {suffix: kind for suffix, kind in Image.registered_extensions().items() if kind in images.FORMATS}
    assert found == {suffix: kind for kind, suffixes in images.FORMATS.items() for suffix in suffixes}
