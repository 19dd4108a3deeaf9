"""Which split a place belongs to: a hash of its geographic cell and the seed, so that adding scenes moves none."""

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.config import datasets
from dithc.data.raster import GeoTransform

Ints = npt.NDArray[np.int64]

SPLITS = ("train", "val", "test")
PIXELS: GeoTransform = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


class Splitter:
    """Assigns cells to splits.

    A cell is a square of `cell_tiles` tiles in the scene's coordinate reference system: the same place on another date,
    or in an overlapping scene, is in the same cell. Without georeference it is a square within the scene.

    Args:
        settings: shares and the size of a cell.
        seed: another seed gives another assignment.
    """

    def __init__(self, settings: datasets.Split, *, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.split_of = lru_cache(maxsize=1 << 16)(self._split_of)

    def _split_of(self, cell: str) -> str:
        digest = hashlib.sha256(f"{self.seed}:{cell}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        if share < self.settings.train:
            return "train"
        return "val" if share < self.settings.train + self.settings.val else "test"

    def wanted(self) -> tuple[str, ...]:
        """Splits whose share is not zero."""
        shares = (self.settings.train, self.settings.val, 1.0 - self.settings.train - self.settings.val)
        return tuple(name for name, share in zip(SPLITS, shares, strict=True) if share > 1e-9)

    def assign(
        self, y: Ints, x: Ints, *, size: int, place: str, transform: GeoTransform | None
    ) -> tuple[list[str], list[str | None]]:
        """The cell and the split of tiles of one scene.

        Args:
            y: (n,) row of each tile's first pixel.
            x: (n,) column of it.
            size: side of a tile in pixels.
            place: the coordinate reference system of a georeferenced scene; the scene's own name of another.
            transform: affine coefficients of a georeferenced scene, else None.

        Returns:
            The cell of each tile's middle, and its split; None for a tile whose corners are in cells of different splits.
        """
        side = self.settings.cell_tiles * size * (1.0 if transform is None else abs(transform[0]))
        corners = [
            _cells(y + dy, x + dx, transform=transform or PIXELS, side=side, place=place)
            for dy in (0.5, size - 0.5)  # centres of the corner pixels: a tile that fills its cell stays inside
            for dx in (0.5, size - 0.5)
        ]
        half = size // 2 + 0.5
        middles = _cells(y + half, x + half, transform=transform or PIXELS, side=side, place=place)
        splits: list[str | None] = []
        for cells in zip(*corners, strict=True):
            found = {self.split_of(cell) for cell in cells}
            splits.append(found.pop() if len(found) == 1 else None)
        return middles, splits


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
