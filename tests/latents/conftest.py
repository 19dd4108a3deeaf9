"""Stand-in for tiles, shared by the tests of this package."""

from typing import Any

import numpy as np
import pytest

from dithc.data import BandScaling

BANDS = ("B02", "B03", "B04", "B08")


class FakeTiles:
    """The part of `Tiles` used by codecs and latents, over arrays in memory; physical values are 0 to 1."""

    def __init__(self, *, count: int, size: int, bands: tuple[str, ...], splits: str, classes: int) -> None:
        draws = np.random.default_rng(7)
        y, x = np.mgrid[0:size, 0:size] / size
        slope = draws.uniform(-1, 1, (count, len(bands), 2, 1, 1))
        plane = slope[:, :, 0] * (x - 0.5) + slope[:, :, 1] * (y - 0.5) + 0.5
        self.physical = np.clip(plane, 0.0, 1.0).astype(np.float32)
        self.count = count
        self.labels = np.arange(count, dtype=np.int32) % classes
        self.splits = np.resize(list(splits), count)
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
        letter = {"train": "t", "val": "v", "test": "e"}
        chosen = np.ones(self.count, bool) if split == "all" else self.splits == letter[split]
        return np.flatnonzero(chosen).astype(np.int64)

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        return self.physical[rows] * np.float32(2) - np.float32(1)

    def rgb(self, rows: np.ndarray) -> np.ndarray:
        return BandScaling(self.info).display(self.physical[rows])


@pytest.fixture
def fake_tiles() -> Any:
    """Return a factory of tilted-plane datasets: `fake_tiles(count=10, size=16, bands=BANDS, splits="t", classes=2)`.

    `splits` is repeated over the tiles: t train, v val, e test.
    """

    def make(
        count: int = 10, size: int = 16, bands: tuple[str, ...] = BANDS, splits: str = "t", classes: int = 2
    ) -> FakeTiles:
        return FakeTiles(count=count, size=size, bands=bands, splits=splits, classes=classes)

    return make
