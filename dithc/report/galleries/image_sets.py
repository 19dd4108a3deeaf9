"""Displayed images: the first of an evaluation, and real tiles, as RGB and as values of bands; the real tiles nearest to images.

Legend: n images, m real tiles, C bands, S side of a tile.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from dithc.core.artifacts import Manifest
from dithc.data import Rows, Tiles, products
from dithc.report.records import EvaluationRecord

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


def nearest_tiles(item: EvaluationRecord, tiles: Tiles, *, seed: int, count: int) -> Rows | str:
    """Return the real tile (n,) nearest to each first image in the features of its score, or the reason why it is unknown."""
    if item.files is None or item.files.features is None or item.files.real_features is None:
        return "the features of both sides are not among the results"
    split, images = item.real_split, item.settings.get("num_real_images")
    rows = tiles.rows(split) if not images else tiles.drawn(split, int(images), seed=seed)  # type: ignore[arg-type]
    first = next(arrays(item.files.features, "features", "shard"), None)
    if first is None:
        return "the features of the images were not stored"
    shards = arrays(item.files.real_features, "features", "shard")
    distances = np.concatenate([cdist(first[:count], shard, "sqeuclidean") for shard in shards], axis=1)  # (n, m)
    if distances.shape[1] != len(rows):
        return f"the features are of {distances.shape[1]:,} real tiles, the dataset has {len(rows):,}"
    nearest_rows: Rows = rows[distances.argmin(axis=1)]
    return nearest_rows
