"""The C library scales and cuts pictures as Pillow does, to the bit, with every instruction set; without it Pillow does."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dithc import native
from dithc.data import pictures
from dithc.data.pictures import center_crop

needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load().reason}")
# Height, width, size: as pictures are, enlarged, one pixel wide, of one tap only, longer than what is read at once.
SHAPES = [
    (375, 500, 256),
    (500, 333, 256),
    (511, 800, 256),
    (256, 256, 256),
    (61, 100, 256),
    (1, 1, 4),
    (1, 9, 5),
    (2, 3, 2),
    (33, 31, 16),
    (97, 64, 63),
    (130, 129, 65),
    (183, 84, 62),
]


def by_pillow(rgb: np.ndarray, size: int) -> np.ndarray:
    """ADM's steps, written as they are published."""
    image = Image.fromarray(rgb)
    while min(image.size) >= 2 * size:
        image = image.resize(tuple(side // 2 for side in image.size), resample=Image.Resampling.BOX)
    scale = size / min(image.size)
    whole = np.array(image.resize(tuple(round(side * scale) for side in image.size), resample=Image.Resampling.BICUBIC))
    top, left = (whole.shape[0] - size) // 2, (whole.shape[1] - size) // 2
    return whole[top : top + size, left : left + size]


def drawn(height: int, width: int) -> np.ndarray:
    """Noise of the two ends, where sums leave the range of a byte, and of all between."""
    draws = np.random.default_rng([height, width])
    ends = 255 * draws.integers(0, 2, (height, width, 3))
    return np.where(draws.random((height, width, 1)) < 0.5, ends, draws.integers(0, 256, (height, width, 3))).astype(
        np.uint8
    )


@pytest.fixture(params=["ref", "avx2", "avx512", "neon", "sve", "sme"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    level = ctypes.c_int()
    library = native.library()
    if library is None or library.hc_isa_detect(request.param.encode(), ctypes.byref(level)) != 0:
        pytest.skip(f"this machine has no {request.param}")
    monkeypatch.setattr(native, "isa", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cut_is_pillows_to_the_bit_with_every_instruction_set(isa: str, shape: tuple[int, int, int]) -> None:
    height, width, size = shape
    rgb = drawn(height, width)
    np.testing.assert_array_equal(center_crop(rgb, size), by_pillow(rgb, size))


@needs_library
def test_cut_of_many_sizes_is_pillows_to_the_bit() -> None:
    draws = np.random.default_rng(0)
    for _ in range(150):
        height, width, size = (int(side) for side in np.exp(draws.uniform(0.0, np.log(200.0), 3)).round())
        rgb = drawn(height, min(width, 8 * height))
        np.testing.assert_array_equal(center_crop(rgb, size), by_pillow(rgb, size), err_msg=f"{rgb.shape} {size}")


def test_without_the_library_pillow_makes_the_same_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_resample", lambda: False)
    for height, width, size in SHAPES:
        rgb = drawn(height, width)
        np.testing.assert_array_equal(center_crop(rgb, size), by_pillow(rgb, size))


@needs_library
def test_real_pictures_are_cut_as_pillow_does(real_data: Callable[[str], Path]) -> None:
    for path in sorted(real_data("imagenet_sample").glob("n*/*"))[::8]:
        with Image.open(path) as image:
            rgb = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(center_crop(rgb, 256), by_pillow(rgb, 256), err_msg=path.name)


@needs_library
@pytest.mark.parametrize("at", range(14))
def test_each_argument_of_the_library_is_checked(at: int) -> None:
    bytes_of = np.zeros(4096, np.uint8)
    first, weights = np.zeros(2, np.int32), np.zeros(4, np.int32)
    axis = (2, 2, first.ctypes.data, weights.ctypes.data)
    good = [b"ref", 4, 4, bytes_of.ctypes.data, *axis, *axis, bytes_of[1024:].ctypes.data, bytes_of[3072:].ctypes.data]
    library = native.library()
    assert library is not None
    assert library.hc_resample(*good) == 0
    assert isinstance(good[at], bytes | int)
    bad = [b"none" if at == 0 else -1 if abs(int(good[at])) < 8 else None]
    with pytest.raises(ValueError, match="hc_resample"):
        library.hc_resample(*good[:at], *bad, *good[at + 1 :])


def test_pictures_are_prepared_without_torch() -> None:
    check = "import sys, dithc.data.pictures as p, dithc.data.resample as r; r.can_resample(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
