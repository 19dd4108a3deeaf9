"""Fixtures: scenes with gaps in GeoTIFF files, a prior trained on their pixels, and restorations of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from dithc.cli import main
from dithc.config import load, stage_spec
from dithc.sample.restoration import RestorationJob

BANDS, SIZE = ["B02", "B03", "B04"], 16
SHAPES = (72, 56), (40, 24)  # of the scenes to restore
TRANSFORM = from_origin(300_000.0, 4_600_020.0, 10.0, 10.0)


def write_scene(
    path: Path, shape: tuple[int, int], *, seed: int, spread: int = 1400, gaps: list[tuple[slice, slice]]
) -> None:
    """Write digital numbers with gaps (0)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(2500 - spread, 2500 + spread, (3, *shape)).astype(np.uint16)
    for gap in gaps:
        pixels[:, *gap] = 0
    profile = {"count": 3, "height": shape[0], "width": shape[1], "dtype": "uint16", "nodata": 0, "crs": "EPSG:32650"}
    with rasterio.open(path, "w", driver="GTiff", transform=TRANSFORM, **profile) as target:
        target.write(pixels)


def dataset(root: Path, name: str) -> dict[str, Any]:
    source = {"kind": "sentinel2-array", "path": str(root / name), "bands": BANDS, "units": "dn", "offset": -1000}
    rendering = {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3}
    split = {"train_fraction": 1.0, "val_fraction": 0.0}
    return {
        "title": name,
        "codec": "none",
        "source": source,
        "tiles": {"size": SIZE},
        "rendering": rendering,
        "split": split,
    }


@pytest.fixture(scope="session")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an experiment `e` with a run of two steps, and ingested scenes of two datasets."""
    root = tmp_path_factory.mktemp("restoration")
    for number in range(2):
        write_scene(root / f"train/{number}.tif", (64, 64), seed=number, gaps=[])
    # A gap in the middle; and an edge without data, which is wider than a tile.
    write_scene(root / "archive/0.tif", SHAPES[0], seed=7, spread=250, gaps=[(slice(20, 44), slice(16, 40))])
    write_scene(root / "archive/1.tif", SHAPES[1], seed=8, spread=250, gaps=[(slice(0, 24), slice(0, 24))])
    model = {"preset": "DiT-S/4", "hidden_size": 32, "depth": 1, "num_heads": 2, "learn_sigma": False}
    run = {
        "dataset": "train",
        "model": model,
        "objective": {"prediction_type": "flow"},
        "steps": 2,
        "global_batch_size": 4,
        "conditions": ["gsd", "place"],
        "band_groups": {"blue": {"bands": ["B02"], "role": "modeled"}},
    }
    config = {
        "name": "e",
        "store": str(root / "store"),
        "datasets": {name: dataset(root, name) for name in ("train", "archive")},
        "codecs": {"none": {"kind": "pixel"}},
        "runs": {"r": run},
        "restorations": {"x": {"run": "r", "dataset": "archive"}},
    }
    (root / "config.json").write_text(json.dumps(config))
    common = ["--config", str(root / "config.json")]
    tiles, latents = root / "tiles/manifest.json", root / "latents/manifest.json"
    for name in ("train", "archive"):
        out = root / f"scenes/{name}/manifest.json"
        assert main(["ingest", *common, "--dataset", name, "--out", str(out)]) == 0
    scenes = str(root / "scenes/train/manifest.json")
    assert main(["tiles", *common, "--dataset", "train", "--scenes", scenes, "--out", str(tiles)]) == 0
    assert main(["latents", *common, "--dataset", "train", "--tiles", str(tiles), "--out", str(latents)]) == 0
    train = ["train", *common, "--run", "r", "--latents", str(latents), "--until", "2"]
    assert main([*train, "--out", str(root / "runs/step_0000002.json")]) == 0
    return root


@pytest.fixture
def make_job(prior: Path, tmp_path: Path) -> Callable[..., RestorationJob]:
    """Return a factory of jobs with the output folder `folder`; settings override small defaults."""

    def make(folder: str = "out", *, masks: bool = False, **settings: Any) -> RestorationJob:
        content = json.loads((prior / "config.json").read_text())
        small = {"members": 4, "steps": 2, "block_size": 32, "batch_size": 16}
        content["restorations"]["x"] |= small | settings
        experiment = load(content)
        return RestorationJob(
            name="x",
            settings=experiment.restorations["x"],
            spec=stage_spec(experiment, "restore", "x"),
            checkpoint=prior / "runs/step_0000002.json",
            tiles=prior / "tiles/manifest.json",
            training=prior / "scenes/train/manifest.json",
            scenes=prior / "scenes/archive/manifest.json",
            masks=prior / "scenes/archive/manifest.json" if masks else None,
            codec_settings=experiment.codecs["none"],
            out=tmp_path / folder / "manifest.json",
        )

    return make
