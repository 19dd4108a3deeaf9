"""Small dataset of GeoTIFF files with scenes and tiles, and images in the form of generated samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from dithc.cli import main
from dithc.core.artifacts import Manifest, digest
from dithc.sample.shards import ImageShards

BANDS, SIDE, SIZE, OFFSET = ["B02", "B03", "B04"], 32, 16, -1000
LEFT, TOP, GSD = 300_000.0, 4_600_020.0, 10.0
IMAGES = 70  # more than a shard


def digital_numbers(seed: int) -> np.ndarray:
    """Return a scene of digital numbers with a corner without data (0) in the first tile."""
    pixels = np.random.default_rng(seed).integers(900, 6000, (3, SIDE, SIDE)).astype(np.uint16)
    pixels[:, :4, :4] = 0
    return pixels


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with scenes/set, tiles/set and samples/some, each with its manifest, of two scenes."""
    root = tmp_path_factory.mktemp("results")
    source = root / "source"
    source.mkdir()
    for number in range(2):
        place = {"crs": "EPSG:32650", "transform": from_origin(LEFT + number * 1000, TOP, GSD, GSD)}
        shape = {"count": 3, "height": SIDE, "width": SIDE, "dtype": "uint16", "nodata": 0}
        with rasterio.open(source / f"scene{number}.tif", "w", driver="GTiff", **shape, **place) as target:
            target.write(digital_numbers(number))
    dataset = {
        "title": "A set",
        "codec": "none",
        "source": {"kind": "sentinel2-array", "path": str(source), "bands": BANDS, "units": "dn", "offset": OFFSET},
        "tiles": {"size": SIZE, "min_valid_fraction": 0.5},
        "split": {"train_fraction": 1.0, "val_fraction": 0.0},
        "rendering": {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": [0.3, 0.4, 0.5]},
    }
    config = {"seed": 0, "datasets": {"set": dataset}, "codecs": {"none": {"kind": "pixel"}}}
    (root / "config.json").write_text(json.dumps(config))
    scenes, tiles = root / "scenes/set/manifest.json", root / "tiles/set/manifest.json"
    arguments = ["--config", str(root / "config.json"), "--dataset", "set"]
    assert main(["ingest", *arguments, "--out", str(scenes)]) == 0
    assert main(["tiles", *arguments, "--scenes", str(scenes), "--out", str(tiles)]) == 0
    write_samples(root, root / "samples/some/manifest.json", codec="pixel-000000000000")
    return root


def scaled_images() -> np.ndarray:
    """Return images like a decoder: about [-1, 1], a few far beyond, exact in fp16."""
    images = np.random.default_rng(7).normal(0, 0.7, (IMAGES, 3, SIZE, SIZE)).astype(np.float16)
    images[3, 1, 2, :5] = [60, -60, 3000, -3000, 0]
    return images.astype(np.float32)


def write_samples(root: Path, out: Path, *, codec: str) -> Path:
    """Write `scaled_images` and their training run."""
    run = root / "runs/one/step_0000007.json"
    if not run.exists():
        numbers = {"step": 7, "seconds_per_step_median": None}
        Manifest(stage="train", name="one", spec={"run": 1}, summary=numbers).write(run)
    numbers = {"step": 7, "codec": codec, "run": "one", "checkpoint": "final"}
    return write_shards(out, scaled_images(), inputs=[run, root / "tiles/set/manifest.json"], each=64, **numbers)


def write_shards(out: Path, images: np.ndarray, *, inputs: list[Path], each: int, **numbers: Any) -> Path:
    """Write shards and a manifest like `dithc sample`."""
    out.parent.mkdir(parents=True)
    shards = ImageShards(folder=out.parent, total=len(images), identity="any", each=each)
    for shard in range(shards.count):
        part = images[list(shards.indices(shard))]
        rgb = np.zeros((len(part), 3, 2, 2), np.uint8)
        shards.write(shard, images=part, rgb=rgb, labels=[0] * len(part), seconds=1.0)
    Manifest(
        stage="sample",
        name=out.parent.name,
        spec={"seed": 11},
        summary={"images": len(images), "seed": 11, "rendering_digest": digest("any"), **numbers},
        files=Manifest.entries(out.parent, sorted(out.parent.glob("*.*"))),
        inputs={str(path): Manifest.read(path).digest for path in inputs},
    ).write(out)
    return out


SCENE = (3, 700, 1100)  # not a multiple of the block size 512


@pytest.fixture
def scene_samples(tiles: Path, tmp_path: Path) -> Path:
    """One scene and its manifest."""
    image = np.random.default_rng(8).normal(0, 0.3, (1, *SCENE)).astype(np.float16)
    image[0, 1, 699, :3] = [60, -60, 3000]
    numbers = {"windows": {"overlap": 0.25, "random_shift": False}, "image_size": 1100, "seam_ratio": 1.01}
    numbers |= {"codec": "pixel-000000000000"}
    out = tmp_path / "scene/manifest.json"
    return write_shards(out, image.astype(np.float32), inputs=[tiles], each=1, **numbers)


@pytest.fixture
def samples(results: Path) -> Path:
    return results / "samples/some/manifest.json"


@pytest.fixture
def tiles(results: Path) -> Path:
    return results / "tiles/set/manifest.json"


@pytest.fixture
def scenes(results: Path) -> Path:
    return results / "scenes/set/manifest.json"
