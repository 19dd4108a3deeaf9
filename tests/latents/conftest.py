"""Stand-in for tiles, shared by the tests of this package."""

import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dithc.data import BandScaling, Tiles

BANDS = ("B02", "B03", "B04", "B08")


class FakeTiles:
    """The part of `Tiles` used by codecs and latents, over arrays in memory; physical values are 0 to 1.

    `splits` is repeated over the tiles: t train, v val, e test.
    """

    def __init__(
        self, count: int = 10, size: int = 16, bands: tuple[str, ...] = BANDS, splits: str = "t", classes: int = 2
    ) -> None:
        draws = np.random.default_rng(7)
        y, x = np.mgrid[0:size, 0:size] / size
        slope = draws.uniform(-1, 1, (count, len(bands), 2, 1, 1))
        plane = slope[:, :, 0] * (x - 0.5) + slope[:, :, 1] * (y - 0.5) + 0.5
        self.physical = np.clip(plane, 0.0, 1.0).astype(np.float32)
        self.count = count
        self.labels = np.arange(count, dtype=np.int32) % classes
        self.splits = np.resize(["tve".index(split) for split in splits], count).astype(np.uint8)
        self.info: dict[str, Any] = {
            "bands": list(bands),
            "size": size,
            "classes": [f"class-{number}" for number in range(classes)],
            "scale": 1.0,
            "offset": 0.0,
            "statistics": [{"low": 0.0, "high": 1.0} for _ in bands],
            "display": {"bands": list(bands[2::-1]), "low": 0.0, "high": 1.0},
        }

    def rows(self, split: str) -> np.ndarray:
        chosen = np.ones(self.count, bool) if split == "all" else self.splits == Tiles.SPLITS.index(split)
        return np.flatnonzero(chosen).astype(np.int64)

    def column(self, name: str) -> np.ndarray:
        return {"split": self.splits, "label": self.labels}[name]

    def conditions(self) -> dict[str, np.ndarray]:
        return {}

    @property
    def stretch(self) -> BandScaling:
        return BandScaling(self.info)

    def stored(self, rows: np.ndarray) -> np.ndarray:
        return self.physical[rows]

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        return self.physical[rows] * np.float32(2) - np.float32(1)

    def rgb(self, rows: np.ndarray) -> np.ndarray:
        return self.stretch.display(self.stored(rows))


@pytest.fixture
def limit_files() -> Iterator[Callable[[int], None]]:
    """Set the largest size of a written file in bytes, up to the end of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def fake_tiles() -> type[FakeTiles]:
    return FakeTiles
