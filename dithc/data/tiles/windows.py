"""Iteration over the tiles of all scenes, by parts of stacks: placed, cut, measured and filtered.

Legend: N tiles, C bands, S side of a tile; H, W scene.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from math import prod

import numpy as np

from dithc.config import datasets
from dithc.data.npy_writer import release
from dithc.data.scene import Array, Mask, Reason
from dithc.data.scenes import Scenes
from dithc.data.splits import Ints, Splits, Splitter, TilePlacement, place_tiles

SCENES_PER_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class TileBatch:
    """Tiles of a stack: pixels (N, C, S, S), mask (N, S, S), scene row in the stack, position, cell and split."""

    pixels: Array
    mask: Array
    scene: list[int]
    y: Ints
    x: Ints
    cells: list[str]
    splits: Splits


def cut(pixels: Array, mask: Array, places: Iterable[TilePlacement], *, size: int, stride: int) -> Iterator[TileBatch]:
    """Yield all tiles of a stack by `places`: batches of scenes if a scene is one tile, else rows of tiles."""
    tiles = ((scene, placed, i) for scene, placed in enumerate(places) for i in range(len(placed.y)))
    rows: Iterator[Iterable[tuple[int, TilePlacement, int]]]
    if max(mask.shape[1:]) < size + stride:
        rows = iter(lambda: list(islice(tiles, SCENES_PER_BATCH)), [])
    else:
        rows = (row for _, row in groupby(tiles, key=lambda tile: (tile[0], tile[1].y[tile[2]])))
    for row in map(list, rows):
        corners = [(scene, int(placed.y[i]), int(placed.x[i])) for scene, placed, i in row]
        scenes, y, x = zip(*corners, strict=True)
        yield TileBatch(
            pixels=np.stack([pixels[scene, :, top : top + size, left : left + size] for scene, top, left in corners]),
            mask=np.stack([mask[scene, top : top + size, left : left + size] for scene, top, left in corners]),
            scene=list(scenes),
            y=np.array(y, np.int64),
            x=np.array(x, np.int64),
            cells=[placed.cells[i] for _, placed, i in row],
            splits=[placed.splits[i] for _, placed, i in row],
        )


def covered_length(side: int, *, size: int, stride: int) -> int:
    """Return the rows (or columns) of a scene that tiles cover; 0 if the scene is smaller than a tile."""
    count = max(0, (side - size) // stride + 1)
    return (count - 1) * min(stride, size) + size if count else 0


@dataclass(frozen=True, kw_only=True)
class TileStatistics:
    """Measurements per tile: share of valid and cloudy pixels (N,), mean and deviation of valid pixels (N, C)."""

    valid: Array
    valid_frac: Array
    cloud_frac: Array
    mean: Array
    std: Array


def measure(batch: TileBatch) -> TileStatistics:
    """Measure tiles; a tile without valid pixels has mean 0 and deviation 0."""
    valid = batch.mask != Mask.INVALID  # (N, S, S)
    count = np.maximum(valid.sum(axis=(1, 2)), 1)[:, np.newaxis]  # (N, 1)
    mean, squares = (np.empty(batch.pixels.shape[:2]) for _ in range(2))  # (N, C) each
    # A single tile stays in the caches. With one band all tiles are summed together, because numpy would use another
    # order for a single tile.
    step = 1 if batch.pixels.shape[1] > 1 else len(valid)
    for first in range(0, len(valid), step):
        part = slice(first, first + step)
        mask = True if valid[part].all() else valid[part, np.newaxis]
        mean[part] = batch.pixels[part].sum(axis=(2, 3), dtype=np.float64, where=mask) / count[part]
        deviation = batch.pixels[part] - mean[part, :, np.newaxis, np.newaxis]  # exact zeros for a constant tile
        if mask is not True:
            deviation *= mask
        squares[part] = np.einsum("ncyx,ncyx->nc", deviation, deviation)
    return TileStatistics(
        valid=valid,
        valid_frac=valid.mean(axis=(1, 2)),
        cloud_frac=(batch.mask == Mask.CLOUD).mean(axis=(1, 2)),
        mean=mean,
        std=np.sqrt(squares / count),
    )


class TileIterator:
    """Iterator over the tiles of scenes by the sections `tiles` and `split`."""

    def __init__(self, settings: datasets.TilesConfig, source: Scenes, splitter: Splitter) -> None:
        self.settings, self.source, self.splitter = settings, source, splitter
        self.stride = settings.stride or settings.size
        self.pixels = self.outside = 0  # of all scenes so far; those that no tile of the lattice covers
        self.num_moved = 0  # tiles that were moved into one split

    def stack(self, number: int) -> Iterator[tuple[TileBatch, TileStatistics]]:
        pixels, mask = self.source.stack(number)
        size = self.settings.size
        covered = prod(covered_length(side, size=size, stride=self.stride) for side in mask.shape[1:])
        self.pixels += mask.size
        self.outside += mask.size - len(mask) * covered
        if covered:
            first = self.source.firsts[number]
            places = (self._place_scene(first + row, mask.shape[1:]) for row in range(len(pixels)))
            for batch in cut(pixels, mask, places, size=size, stride=self.stride):
                measured = measure(batch)
                release(pixels)
                yield batch, measured

    def _place_scene(self, position: int, shape: tuple[int, int]) -> TilePlacement:
        columns = self.source.columns
        transform = columns["transform"][position]
        placed = place_tiles(
            self.splitter,
            shape,
            size=self.settings.size,
            stride=self.stride,
            place=columns["scene_id"][position] if transform is None else columns["crs"][position],
            transform=transform and tuple(transform),
        )
        self.num_moved += placed.num_moved
        return placed

    def reason(self, measured: TileStatistics, i: int) -> Reason | None:
        """Return the reason why a tile is rejected in any split, or None."""
        settings = self.settings
        if measured.valid_frac[i] < settings.min_valid_fraction or not measured.valid_frac[i]:
            return Reason.TOO_LITTLE_VALID
        has_clear = measured.cloud_frac[i] < measured.valid_frac[i] or not settings.masks
        if measured.cloud_frac[i] > settings.max_cloud_fraction or not has_clear:
            return Reason.TOO_CLOUDY
        return Reason.CONSTANT if measured.std[i].max() <= settings.min_std else None
