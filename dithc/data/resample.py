"""Pictures scaled and cut as Pillow does it, to the bit, by the C library, which makes the cut alone and several pixels at once.

Legend: H, W picture; h, w scaled picture; S side of the cut.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dithc import native

Pixels = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

WEIGHT_BITS = 22
"""Of Pillow's weights (`PRECISION_BITS` in Resample.c)."""
SUPPORT = 2.0
BLOCK_ROWS = 64


def can_resample() -> bool:
    """Whether the C library is there."""
    return native.library() is not None


def resampled(rgb: Pixels, *, width: int, height: int, left: int, top: int, size: int) -> Pixels:
    """A square of a picture that was scaled with Pillow's bicubic filter.

    Args:
        rgb: uint8 (H, W, 3), contiguous.
        width: w of the scaled picture.
        height: h of the scaled picture.
        left: first column of the cut in it.
        top: first row of the cut in it.
        size: S.

    Returns:
        uint8 (3, S, S).
    """
    library = native.library()
    assert library is not None, "asked for the C library without one"
    first_across, across = _weights(rgb.shape[1], width, left, size)
    first_down, down = _weights(rgb.shape[0], height, top, size)
    start, stop = int(first_down[0]), int(first_down[-1]) + down.shape[1]  # rows that the cut is made of
    rows = rgb[start:stop]
    first_down = first_down - np.int32(start)
    scratch = np.empty(3 * len(rows) * size + 3 * BLOCK_ROWS * rgb.shape[1], np.uint8)
    cut = np.empty((3, size, size), np.uint8)
    library.hc_resample(
        *(native.isa().encode(), *rows.shape[:2], rows.ctypes.data),
        *(size, across.shape[1], first_across.ctypes.data, across.ctypes.data),
        *(size, down.shape[1], first_down.ctypes.data, down.ctypes.data),
        *(scratch.ctypes.data, cut.ctypes.data),
    )
    return cut  # (3, S, S)


@lru_cache(maxsize=4096)
def _weights(pixels: int, scaled: int, start: int, count: int) -> tuple[Ints, Ints]:
    """The first pixel that each of `count` scaled ones is made of, and the weights from there on, as Pillow rounds them.

    Keys' cubic convolution with a = -0.5 (1981), stretched where the picture is made smaller; `precompute_coeffs` of Pillow's
    Resample.c does the same operations in the same order.
    """
    scale = pixels / scaled
    stretch = max(scale, 1.0)
    support = SUPPORT * stretch
    centre = (np.arange(start, start + count) + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), pixels)
    taps = int((high - low).max())
    first = np.minimum(low, pixels - taps)
    at = first[:, np.newaxis] + np.arange(taps)
    x = np.abs((at - centre[:, np.newaxis] + 0.5) * (1.0 / stretch))
    near, far = ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    weights = np.where(x < 1.0, near, np.where(x < SUPPORT, far, 0.0))
    weights[(at < low[:, np.newaxis]) | (at >= high[:, np.newaxis])] = 0.0
    weights = weights / np.cumsum(weights, axis=1)[:, -1:]  # a sum in order
    whole = np.trunc(weights * (1 << WEIGHT_BITS) + np.copysign(0.5, weights))
    return first.astype(np.int32), np.ascontiguousarray(whole, np.int32)
