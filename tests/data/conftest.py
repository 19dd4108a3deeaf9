"""Small stand-ins that several tests of the data room use."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.data import synthesize
from dithc.data.tiles import Stretch

BANDS = ("B02", "B03", "B04", "B08")


class FakeTiles:
    """The part of `Tiles` that codecs and latents use, over arrays in memory; physical values are 0 to 1."""

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
        return Stretch(self.info).display(self.physical[rows])


@pytest.fixture
def fake_tiles() -> Any:
    """Makes a data set of tilted planes: `fake_tiles(count=10, size=16, bands=BANDS, splits="t", classes=2)`.

    `splits` is repeated over the tiles: t train, v val, e test.
    """

    def make(
        count: int = 10, size: int = 16, bands: tuple[str, ...] = BANDS, splits: str = "t", classes: int = 2
    ) -> FakeTiles:
        return FakeTiles(count=count, size=size, bands=bands, splits=splits, classes=classes)

    return make


ROOT = Path(__file__).parent.parent.parent
DATA = Path(os.environ.get("DITHC_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Folder of real test data by name; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"real data {DATA / name} is not on this machine (set DITHC_DATA)")
        return DATA / name

    return find


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration with one data set, `set`: `config(source={...}, tiles={...}, ...)`; returns its path."""

    def write(*, source: dict[str, Any], seed: int = 0, **parts: Any) -> Path:
        shown = parts.pop("display", {"bands": ["R", "G", "B"], "low": 0.0, "high": 255.0})
        dataset = {"title": "A set", "codec": "none", "display": shown, "source": source, **parts}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"seed": seed, "datasets": {"set": dataset}, "codecs": {"none": {"kind": "pixel"}}}))
        return path

    return write


@pytest.fixture(scope="session")
def _safe_products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safe") / "products"
    synthesize("sentinel2", folder, seed=3, scenes=2, size=96)
    shutil.rmtree(min(folder.glob("*.SAFE")))  # the first has an unseen corner, which would blur what tests spoil
    return folder


@pytest.fixture
def safe_folder(_safe_products: Path, tmp_path: Path) -> Path:
    """A folder with one generated Level 2A product of 96 pixels at 10 m, for the test to spoil."""
    return Path(shutil.copytree(_safe_products, tmp_path / "products"))


@pytest.fixture
def safe_product(safe_folder: Path) -> Path:
    """The product in `safe_folder`."""
    return next(safe_folder.glob("*.SAFE"))
