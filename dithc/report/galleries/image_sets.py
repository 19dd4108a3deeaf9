"""Displayed images: the first of an evaluation, and real tiles, as RGB and as values of bands.

Legend: n images, C bands, S side of a tile.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest
from dithc.data import Rows, Tiles, products

RGB = NDArray[np.uint8]
Scaled = NDArray[np.float32]


def arrays(manifest: Path, stage: str, kind: str) -> Iterator[NDArray[np.generic]]:
    """Yield the verified arrays `kind-*.npy` next to a manifest, in order."""
    names = sorted(entry["path"] for entry in Manifest.read(manifest, stage=stage).files)
    for name in names:
        if name.startswith(f"{kind}-") and name.endswith(".npy"):
            yield products.open_npy(Manifest.verified(manifest.parent / name))


class RealTiles:
    """The first `max_tiles` tiles of a dataset in a random order by seed."""

    def __init__(self, folder: Path, *, seed: int, max_tiles: int) -> None:
        self.tiles = Tiles(folder)
        count = min(max_tiles, self.tiles.count)
        self.rows: Rows = np.random.default_rng(seed).choice(self.tiles.count, count, replace=False).astype(np.int64)

    @property
    def bands(self) -> list[str]:
        return list(self.tiles.info["bands"])

    def rgb(self, count: int) -> RGB:
        """Return the first tiles as RGB, (n, 3, S, S)."""
        return self.tiles.rgb(self.rows[:count])

    @cached_property
    def scaled(self) -> Scaled:
        """All tiles, each band from -1 to 1, (n, C, S, S)."""
        return self.tiles.scaled(self.rows)


def first_images(manifest: Path, count: int) -> RGB | None:
    """Return the first images of an evaluation as RGB, (n, 3, S, S), at most a shard; None without images."""
    shard = next(arrays(manifest, "sample", "rgb"), None)
    return None if shard is None else np.array(shard[:count], np.uint8)


def first_scaled(manifest: Path, count: int, *, bands: int) -> Scaled | None:
    """Return the same images, each band from -1 to 1, (n, C, S, S); None if bands differ from the dataset."""
    shard = next(arrays(manifest, "sample", "shard"), None)
    return None if shard is None or shard.shape[1] != bands else np.array(shard[:count], np.float32)
