"""Tiles as arrays: windows of stacked scenes, and what is measured of each.

Legend: N tiles, C bands, S side of a tile; H, W scene.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dithc.data.scene import Array, Mask
from dithc.data.split import Ints

SCENES_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Some tiles: pixels (N, C, S, S), mask (N, S, S), row of the scene in its stack, and place in the scene."""

    pixels: Array
    mask: Array
    scene: list[int]
    y: Ints
    x: Ints


def cuts(pixels: Array, mask: Array, *, size: int, stride: int) -> Iterator[Cut]:
    """All tiles of a stack: many scenes at once where a scene is one tile, else a row of tiles at a time."""
    count, _, height, width = pixels.shape
    tops, lefts = (np.arange(0, side - size + 1, stride, dtype=np.int64) for side in (height, width))
    if len(tops) * len(lefts) == 1:
        for first in range(0, count, SCENES_AT_ONCE):
            part = slice(first, first + SCENES_AT_ONCE)
            scene = list(range(count)[part])
            zero = np.zeros(len(scene), dtype=np.int64)
            chosen = np.ascontiguousarray(pixels[part, :, :size, :size])
            yield Cut(pixels=chosen, mask=mask[part, :size, :size], scene=scene, y=zero, x=zero)
        return
    for scene_row in range(count):
        for top in tops.tolist():
            strip = pixels[scene_row, :, top : top + size]  # (C, S, W)
            windows = np.lib.stride_tricks.sliding_window_view(strip, size, axis=2)[:, :, ::stride]  # (C, S, N, S)
            strip_mask = np.lib.stride_tricks.sliding_window_view(mask[scene_row, top : top + size], size, axis=1)
            yield Cut(
                pixels=np.ascontiguousarray(windows.transpose(2, 0, 1, 3)),  # (N, C, S, S)
                mask=strip_mask[:, ::stride].transpose(1, 0, 2),  # (N, S, S)
                scene=[scene_row] * len(lefts),
                y=np.full(len(lefts), top, dtype=np.int64),
                x=lefts,
            )


def covered_length(side: int, *, size: int, stride: int) -> int:
    """How many of a scene's rows (or columns) are in some tile; 0 where the scene is smaller than one."""
    count = max(0, (side - size) // stride + 1)
    return (count - 1) * min(stride, size) + size if count else 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Per tile: share of valid and of cloudy pixels (N,), mean and deviation of each band's valid pixels (N, C)."""

    valid: Array
    valid_frac: Array
    cloud_frac: Array
    mean: Array
    std: Array


def measure(cut: Cut) -> Measured:
    """Measures tiles; a tile without any valid pixel has mean 0 and deviation 0."""
    valid = cut.mask != Mask.INVALID  # (N, S, S)
    chosen = True if valid.all() else valid[:, np.newaxis]
    count = np.maximum(valid.sum(axis=(1, 2)), 1)[:, np.newaxis]  # (N, 1)
    mean = cut.pixels.sum(axis=(2, 3), dtype=np.float64, where=chosen) / count  # (N, C)
    deviation = cut.pixels - mean[:, :, np.newaxis, np.newaxis]  # exact zeros for a constant tile
    if chosen is not True:
        deviation *= chosen
    std = np.sqrt(np.einsum("ncyx,ncyx->nc", deviation, deviation) / count)
    return Measured(
        valid=valid,
        valid_frac=valid.mean(axis=(1, 2)),
        cloud_frac=(cut.mask == Mask.CLOUD).mean(axis=(1, 2)),
        mean=mean,
        std=std,
    )
