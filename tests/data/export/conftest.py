"""Small dataset of GeoTIFF files with scenes and tiles, and images in the form of generated samples."""

import json
from pathlib import Path

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
    asked = ["--config", str(root / "config.json"), "--dataset", "set"]
    assert main(["ingest", *asked, "--out", str(scenes)]) == 0
    assert main(["tiles", *asked, "--scenes", str(scenes), "--out", str(tiles)]) == 0
    write_samples(root, root / "samples/some/manifest.json", codec="pixel-000000000000")
    return root


def scaled_images(count: int = IMAGES) -> np.ndarray:
    """Return images like a decoder: about [-1, 1], a few far beyond, exact in fp16."""
    images = np.random.default_rng(7).normal(0, 0.7, (count, 3, SIZE, SIZE)).astype(np.float16)
    images[3, 1, 2, :5] = [60, -60, 3000, -3000, 0]
    return images.astype(np.float32)


def write_samples(root: Path, out: Path, *, codec: str) -> Path:
    """Write shards and a manifest like `dithc sample`."""
    images, labels = scaled_images(), [0] * IMAGES
    out.parent.mkdir(parents=True)
    shards = ImageShards(folder=out.parent, total=IMAGES, identity="any")
    rgb = np.zeros((IMAGES, 3, SIZE, SIZE), np.uint8)
    for shard in range(shards.count):
        here = list(shards.indices(shard))
        shards.write(shard, images=images[here], rgb=rgb[here], labels=[labels[i] for i in here], seconds=1.0)
    run = root / "runs/one/step_0000007.json"
    if not run.exists():
        numbers = {"step": 7, "seconds_per_step_median": None}
        Manifest(stage="train", name="one", spec={"run": 1}, numbers=numbers).write(run)
    numbers = {"images": IMAGES, "seed": 11, "step": 7, "codec": codec, "run": "one", "checkpoint": "final"}
    inputs = {str(path): Manifest.read(path).digest for path in (run, root / "tiles/set/manifest.json")}
    Manifest(
        stage="sample",
        name="some",
        spec={"seed": 11},
        numbers=numbers | {"stretch": digest("any")},
        files=Manifest.entries(out.parent, sorted(out.parent.glob("*.*"))),
        inputs=inputs,
    ).write(out)
    return out


SCENE = (3, 700, 1100)  # not a multiple of the block size 512


@pytest.fixture
def scene_samples(results: Path, tmp_path: Path) -> Path:
    """One scene and its manifest, in the form of `dithc sample`."""
    image = np.random.default_rng(8).normal(0, 0.3, (1, *SCENE)).astype(np.float16)
    image[0, 1, 699, :3] = [60, -60, 3000]
    out = tmp_path / "scene/manifest.json"
    shards = ImageShards(folder=out.parent, total=1, identity="any", each=1)
    out.parent.mkdir()
    shards.write(0, images=image.astype(np.float32), rgb=np.zeros((1, 3, 2, 2), np.uint8), labels=[0], seconds=1.0)
    way = {
        "windows": {"overlap": 0.25, "random_shift": False},
        "image_size": 1100,
        "seam_ratio": 1.01,
        "codec": "pixel-000000000000",
    }
    tiles = results / "tiles/set/manifest.json"
    Manifest(
        stage="sample",
        name="whole",
        spec={"seed": 11},
        numbers={"images": 1, "seed": 11, "stretch": digest("any"), **way},
        files=Manifest.entries(out.parent, sorted(out.parent.glob("*.*"))),
        inputs={str(tiles): Manifest.read(tiles).digest},
    ).write(out)
    return out


@pytest.fixture
def samples(results: Path) -> Path:
    return results / "samples/some/manifest.json"


@pytest.fixture
def tiles(results: Path) -> Path:
    return results / "tiles/set/manifest.json"


@pytest.fixture
def scenes(results: Path) -> Path:
    return results / "scenes/set/manifest.json"
