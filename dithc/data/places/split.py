"""Assignment of places to splits by a hash of cell and seed, so that new scenes change no assignment."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.config import datasets
from dithc.data.grids import GeoTransform, degrees
from dithc.data.places.earth import EarthGrid, Ints
from dithc.log import problem

SPLITS = ("train", "val", "test")
PIXELS: GeoTransform = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
Splits = list[str | None]


class Splitter:
    """Splitter of cells by `seed`; a cell in `joined` gets the split of another.

    With `cell_m`, cells belong to the grid over the entire Earth (`earth.py`), for every coordinate reference system
    and pixel size. Otherwise they are squares of `cell_tiles` tiles in the scene's system. The same place on another
    date or in an overlapping scene is in the same cell. Without georeference, a cell is a square in the scene.
    """

    def __init__(self, settings: datasets.Split, *, seed: int, joined: Mapping[str, str] | None = None) -> None:
        self.settings, self.seed, self._joined = settings, seed, joined or {}
        self.split_of = lru_cache(maxsize=1 << 16)(self._split_of)

    def _split_of(self, cell: str) -> str:
        digest = hashlib.sha256(f"{self.seed}:{self._joined.get(cell, cell)}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        if share < self.settings.train:
            return "train"
        return "val" if share < self.settings.train + self.settings.val else "test"

    def wanted(self) -> tuple[str, ...]:
        """Return the splits with a nonzero share."""
        shares = (self.settings.train, self.settings.val, 1.0 - self.settings.train - self.settings.val)
        return tuple(name for name, share in zip(SPLITS, shares, strict=True) if share > 1e-9)

    def assign(
        self, y: Ints, x: Ints, *, size: int, place: str, transform: GeoTransform | None
    ) -> tuple[list[str], Splits]:
        """Return the cell of each tile's center and its split, None for a tile that touches cells of different splits.

        y and x (n,) are the first rows and columns of tiles of `size` pixels. `place` and `transform` are as in
        `place_tiles`.
        """
        if transform is not None and self.settings.cell_m is not None:
            return self._on_earth(y, x, size=size, crs=place, transform=transform)
        side = self.settings.cell_tiles * size * (1.0 if transform is None else abs(transform[0]))
        corners = [
            _cells(y + dy, x + dx, transform=transform or PIXELS, side=side, place=place)
            for dy in (0.5, size - 0.5)  # centers of corner pixels, so that a tile that fills its cell stays inside
            for dx in (0.5, size - 0.5)
        ]
        half = size // 2 + 0.5
        middles = _cells(y + half, x + half, transform=transform or PIXELS, side=side, place=place)
        splits: Splits = []
        for cells in zip(*corners, strict=True):
            found = {self.split_of(cell) for cell in cells}
            splits.append(found.pop() if len(found) == 1 else None)
        return middles, splits

    def _on_earth(self, y: Ints, x: Ints, *, size: int, crs: str, transform: GeoTransform) -> tuple[list[str], Splits]:
        """Assign entire tiles instead of pixel centers; an edge bends by less than half a pixel between its points."""
        assert self.settings.cell_m is not None
        grid = EarthGrid(side_m=self.settings.cell_m)
        longitudes, latitudes = outline(y, x, size=size, crs=crs, transform=transform)  # (n, 9)
        if not np.isfinite(longitudes).all():
            raise problem(
                "a scene is outside of the Earth",
                got=f"coefficients {transform} in the system {crs}",
                expected="a place on the Earth, which determines the cell of each tile (`split.cell_m`)",
                fix="correct the georeference of that scene, remove it from the source, or omit `split.cell_m`",
            )
        tile, rows, columns = grid.touched(longitudes, latitudes, buffer_m=self.settings.buffer_m / 2)
        kinds, kind = np.unique(np.stack([rows, columns]), axis=1, return_inverse=True)
        numbers = np.array([SPLITS.index(self.split_of(self._name(*cell))) for cell in kinds.T.tolist()], np.int64)
        found = numbers[kind.ravel()]  # per pair of a tile and a cell
        least, most = np.full(len(y), len(SPLITS)), np.full(len(y), -1)
        np.minimum.at(least, tile, found)
        np.maximum.at(most, tile, found)
        middles = zip(*(part.tolist() for part in grid.cells(longitudes[:, 0], latitudes[:, 0])), strict=True)
        splits: Splits = [SPLITS[low] if low == high else None for low, high in zip(least, most, strict=True)]
        return [self._name(*cell) for cell in middles], splits

    def _name(self, row: int, column: int) -> str:
        return f"{self.settings.cell_m:g}m/{row}/{column}"


def outline(
    y: Ints, x: Ints, *, size: int, crs: str, transform: GeoTransform
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return longitudes and latitudes (n, 9) of tile centers, corners and edge midpoints."""
    a, b, c, d, e, f = transform
    places = [(0.5, 0.5), *((v, u) for v in (0.0, 0.5, 1.0) for u in (0.0, 0.5, 1.0) if (v, u) != (0.5, 0.5))]
    rows = y[:, np.newaxis] + size * np.array([v for v, _ in places])  # (n, 9)
    columns = x[:, np.newaxis] + size * np.array([u for _, u in places])
    longitudes, latitudes = degrees((a * columns + b * rows + c).ravel(), (d * columns + e * rows + f).ravel(), crs=crs)
    return longitudes.reshape(rows.shape), latitudes.reshape(rows.shape)


def _cells(
    rows: npt.NDArray[np.floating[Any]],
    columns: npt.NDArray[np.floating[Any]],
    *,
    transform: GeoTransform,
    side: float,
    place: str,
) -> list[str]:
    a, b, c, d, e, f = transform
    across = np.floor((a * columns + b * rows + c) / side).astype(np.int64)
    along = np.floor((d * columns + e * rows + f) / side).astype(np.int64)
    return [f"{place}/{i}/{j}" for i, j in zip(across.tolist(), along.tolist(), strict=True)]
