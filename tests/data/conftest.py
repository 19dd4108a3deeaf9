"""Fixtures shared by tests of the package `data`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dithc.data import synthesize
from tests.inputs.gaofen2_raw import write_products

ROOT = Path(__file__).parent.parent.parent
DATA = Path(os.environ.get("DITHC_TEST_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Return the folder of a real test dataset by name; skip the test if it is missing."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"real data {DATA / name} is not on this machine (set DITHC_TEST_DATA)")
        return DATA / name

    return find


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a configuration with one dataset `set`: `config(source={...}, ...)`."""

    def write(*, source: dict[str, Any], seed: int = 0, **parts: Any) -> Path:
        shown = parts.pop("rendering", {"bands": source.get("bands", ["R", "G", "B"])[:3], "low": 0.0, "high": 255.0})
        dataset = {"title": "A set", "codec": "none", "rendering": shown, "source": source, **parts}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"seed": seed, "datasets": {"set": dataset}, "codecs": {"none": {"kind": "pixel"}}}))
        return path

    return write


@pytest.fixture(scope="session")
def _safe_products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safe") / "products"
    synthesize("sentinel2", folder, seed=3, scenes=2, size=96)
    shutil.rmtree(min(folder.glob("*.SAFE")))  # its corner without data would interfere with damage made by tests
    return folder


@pytest.fixture
def safe_folder(_safe_products: Path, tmp_path: Path) -> Path:
    """Create a folder with one generated Level 2A product of 96 pixels at 10 m, which the test may damage."""
    return Path(shutil.copytree(_safe_products, tmp_path / "products"))


@pytest.fixture
def safe_product(safe_folder: Path) -> Path:
    """Return the product in `safe_folder`."""
    return next(safe_folder.glob("*.SAFE"))


@pytest.fixture(scope="session")
def _raw_gaofen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "gaofen"
    write_products(folder)
    return folder


@pytest.fixture
def raw_gaofen(_raw_gaofen: Path, tmp_path: Path) -> Path:
    """Create two Gaofen-2 products of level 1A (`products/`: folder and .tar.gz) with `terrain/`; tests may damage
    them.
    """
    return Path(shutil.copytree(_raw_gaofen, tmp_path / "gaofen"))
