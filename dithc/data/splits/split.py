"""Placement of tiles on scenes, and their splits by a hash of cell and seed, so that new scenes change no assignment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dithc.config import datasets
from dithc.core.logging import user_error
from dithc.data.geometry import Floats, GeoTransform
from dithc.data.splits.equal_area_grid import EarthGrid, Ints

SPLITS = ("train", "val", "test")
PIXEL_TRANSFORM: GeoTransform = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
STEPS = 8
"""Steps per tile side for moves, which cover at most half of the side."""
Splits = list[str | None]
Assignment = tuple[list[str], Splits]


class Splitter:
    """Splitter of cells by `seed`; a cell in `joined` gets the split of another.

    With `cell_size_m`, cells belong to the grid over the entire Earth (`equal_area_grid.py`), for every coordinate reference
    system and pixel size. Otherwise they are squares of `cell_size_tiles` tiles in the scene's system. The same place on another
    date or in an overlapping scene is in the same cell. Without georeference, a cell is a square in the scene.
    """

    def __init__(self, settings: datasets.SplitConfig, *, seed: int, joined: Mapping[str, str] | None = None) -> None:
        self.settings, self.seed, self._joined = settings, seed, joined or {}
        self.split_of = lru_cache(maxsize=1 << 16)(self._split_of)

    def _split_of(self, cell: str) -> str:
        digest = hashlib.sha256(f"{self.seed}:{self._joined.get(cell, cell)}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        if share < self.settings.train_fraction:
            return "train"
        return "val" if share < self.settings.train_fraction + self.settings.val_fraction else "test"

    def nonempty_splits(self) -> tuple[str, ...]:
        train, val = self.settings.train_fraction, self.settings.val_fraction
        shares = (train, val, 1.0 - train - val)
        return tuple(name for name, share in zip(SPLITS, shares, strict=True) if share > 1e-9)

    def assign(self, y: Ints, x: Ints, *, size: int, place: str, transform: GeoTransform | None) -> Assignment:
        """Return the cell of each tile's center and its split, None for a tile that touches cells of different splits.

        y and x (n,) are the first pixels of tiles of `size` pixels. See `place_tiles` for `place` and `transform`.
        """
        if transform is not None and self.settings.cell_size_m is not None:
            return self._assign_on_earth(y, x, size=size, crs=place, transform=transform)
        side = self.settings.cell_size_tiles * size * (1.0 if transform is None else abs(transform[0]))
        corners = [
            _cells(y + dy, x + dx, transform=transform or PIXEL_TRANSFORM, side=side, place=place)
            for dy in (0.5, size - 0.5)  # centers of corner pixels, so that a tile that fills its cell stays inside
            for dx in (0.5, size - 0.5)
        ]
        half = size // 2 + 0.5
        centers = _cells(y + half, x + half, transform=transform or PIXEL_TRANSFORM, side=side, place=place)
        splits: Splits = []
        for cells in zip(*corners, strict=True):
            corner_splits = {self.split_of(cell) for cell in cells}
            splits.append(corner_splits.pop() if len(corner_splits) == 1 else None)
        return centers, splits

    def _assign_on_earth(self, y: Ints, x: Ints, *, size: int, crs: str, transform: GeoTransform) -> Assignment:
        """Assign entire tiles instead of pixel centers; an edge bends by less than half a pixel between its points."""
        assert self.settings.cell_size_m is not None
        grid = EarthGrid(side_m=self.settings.cell_size_m)
        longitudes, latitudes = outline(y, x, size=size, crs=crs, transform=transform)  # (n, 9)
        if not np.isfinite(longitudes).all():
            raise user_error(
                "a scene is outside of the Earth",
                got=f"coefficients {transform} in the system {crs}",
                expected="a place on the Earth, which determines the cell of each tile (`split.cell_size_m`)",
                fix="correct the georeference of that scene, remove it from the source, or omit `split.cell_size_m`",
            )
        tile, rows, columns = grid.touched(longitudes, latitudes, buffer_m=self.settings.buffer_m / 2)
        kinds, kind = np.unique(np.stack([rows, columns]), axis=1, return_inverse=True)
        numbers = np.array([SPLITS.index(self.split_of(self._name(*cell))) for cell in kinds.T.tolist()], np.int64)
        pair_splits = numbers[kind.ravel()]  # per pair of a tile and a cell
        lows, highs = np.full(len(y), len(SPLITS)), np.full(len(y), -1)
        np.minimum.at(lows, tile, pair_splits)
        np.maximum.at(highs, tile, pair_splits)
        centers = zip(*(part.tolist() for part in grid.cells(longitudes[:, 0], latitudes[:, 0])), strict=True)
        splits: Splits = [SPLITS[low] if low == high else None for low, high in zip(lows, highs, strict=True)]
        return [self._name(*cell) for cell in centers], splits

    def _name(self, row: int, column: int) -> str:
        return f"{self.settings.cell_size_m:g}m/{row}/{column}"


def outline(y: Ints, x: Ints, *, size: int, crs: str, transform: GeoTransform) -> tuple[Floats, Floats]:
    """Return longitudes and latitudes (n, 9) of tile centers, corners and edge midpoints."""
    from dithc.data.grids import degrees  # imports rasterio, which readers of tiles do not need

    a, b, c, d, e, f = transform
    places = [(0.5, 0.5), *((v, u) for v in (0.0, 0.5, 1.0) for u in (0.0, 0.5, 1.0) if (v, u) != (0.5, 0.5))]
    rows = y[:, np.newaxis] + size * np.array([v for v, _ in places])  # (n, 9)
    columns = x[:, np.newaxis] + size * np.array([u for _, u in places])
    longitudes, latitudes = degrees((a * columns + b * rows + c).ravel(), (d * columns + e * rows + f).ravel(), crs=crs)
    return longitudes.reshape(rows.shape), latitudes.reshape(rows.shape)


def _cells(rows: Floats, columns: Floats, *, transform: GeoTransform, side: float, place: str) -> list[str]:
    a, b, c, d, e, f = transform
    across = np.floor((a * columns + b * rows + c) / side).astype(np.int64)
    along = np.floor((d * columns + e * rows + f) / side).astype(np.int64)
    return [f"{place}/{i}/{j}" for i, j in zip(across.tolist(), along.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class TilePlacement:
    """Tiles of a scene: rows and columns of first pixels (n,), cells, splits; the last `num_moved` left the lattice."""

    y: Ints
    x: Ints
    cells: list[str]
    splits: Splits
    num_moved: int = 0


def lattice(shape: tuple[int, int], *, size: int, stride: int) -> tuple[Ints, Ints]:
    """Return rows and columns of the first pixels of all tiles of a scene (H, W), row by row."""
    tops, lefts = (np.arange(0, side - size + 1, stride, dtype=np.int64) for side in shape)
    y, x = np.meshgrid(tops, lefts, indexing="ij")
    return y.ravel(), x.ravel()


def place_tiles(
    splitter: Splitter, shape: tuple[int, int], *, size: int, stride: int, place: str, transform: GeoTransform | None
) -> TilePlacement:
    """Return the tiles of a scene (H, W), of `size` pixels at distances of `stride`.

    Cells of the Earth grid do not align with the scene. A lattice tile in two splits moves by at most half its side,
    the shortest way to the split of its center. It then overlaps its neighbors, but no pixel is in tiles of two
    splits. Without a suitable position it stays, without a split. `place` is the coordinate reference system, or the
    scene's name without georeference; `transform` is None then.
    """
    y, x = lattice(shape, size=size, stride=stride)
    cells, splits = splitter.assign(y, x, size=size, place=place, transform=transform)
    placed = TilePlacement(y=y, x=x, cells=cells, splits=splits)
    across = np.array([i for i, split in enumerate(splits) if split is None], dtype=np.int64)
    if transform is None or splitter.settings.cell_size_m is None or not size // STEPS or not len(across):
        return placed
    shifts = _shifts(size, stride)  # (k, 2)
    corners = np.stack([y[across], x[across]], axis=1)[:, np.newaxis] + shifts  # (m, k, 2)
    owner = np.repeat(across, len(shifts))
    corners = corners.reshape(-1, 2)
    inside = ((corners >= 0) & (corners <= [y.max(), x.max()])).all(axis=1)
    corners, owner = corners[inside], owner[inside]
    new_cells, new_splits = splitter.assign(corners[:, 0], corners[:, 1], size=size, place=place, transform=transform)
    moves: dict[int, int] = {}
    occupied: set[tuple[int, ...]] = set()
    for i, (tile, split) in enumerate(zip(owner.tolist(), new_splits, strict=True)):
        fits = split is not None and split == splitter.split_of(cells[tile])
        if fits and tile not in moves and (position := tuple(corners[i].tolist())) not in occupied:
            moves[tile] = i
            occupied.add(position)
    rest = [i for i in range(len(y)) if i not in moves]
    new = sorted(moves.values())
    return TilePlacement(
        y=np.concatenate([y[rest], corners[new, 0]]),
        x=np.concatenate([x[rest], corners[new, 1]]),
        cells=[cells[i] for i in rest] + [new_cells[i] for i in new],
        splits=[splits[i] for i in rest] + [new_splits[i] for i in new],
        num_moved=len(new),
    )


def _shifts(size: int, stride: int) -> Ints:
    """Return moves (k, 2) down and right, nearest first, without moves onto other tiles of the lattice."""
    step = size // STEPS
    steps = np.array([k * step for k in range(-STEPS // 2, STEPS // 2 + 1) if abs(k * step) < stride], np.int64)
    moves = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    moves = moves[moves.any(axis=1)]
    return moves[np.argsort((moves**2).sum(axis=1), kind="stable")]
