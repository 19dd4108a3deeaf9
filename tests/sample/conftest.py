"""Fixtures: a small run trained on pixels, and its sampling jobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dithc.config import codecs, evaluations, training
from dithc.core.artifacts import Manifest, digest
from dithc.engine.comm import Group
from dithc.sample import SamplingJob
from dithc.train import Paths, train
from dithc.train import TrainingJob as TrainJob
from tests.train.conftest import SIDE, SMALL, _one_thread, store_latents  # noqa: F401

BANDS, ROWS, CLASSES = 4, 12, 3
PIXEL = codecs.PixelCodecConfig(kind="pixel")
CODEC_ID = f"pixel-{digest({'kind': 'pixel'})}"
TILES = Manifest(stage="tiles", name="toy", spec={})
TILES_DIGEST = TILES.digest


def write_tiles(folder: Path, **more: Any) -> Path:
    """Write a dataset description, the only part of the tiles that sampling reads."""
    folder.mkdir(parents=True)
    info = {
        "schema_version": 1,
        "bands": ["B", "G", "R", "NIR"],
        "size": SIDE,
        "dtype": "uint16",
        "scale": 1.0,
        "offset": 0.0,
        "statistics": [{"low": 0.0, "high": 100.0}] * BANDS,
        "display": {"bands": ["R", "G", "B"], "low": 0.0, "high": 100.0},
        "shards": [],
        **more,
    }
    (folder / "dataset.json").write_text(json.dumps(info))
    TILES.write(folder / "manifest.json")
    return folder / "manifest.json"


def write_latents(folder: Path, *, classes: int = CLASSES, tiles_digest: str = TILES_DIGEST, **more: Any) -> Path:
    """Write pixels of `ROWS` tiles; class 1 exists in the validation split only."""
    labels = np.arange(ROWS) % CLASSES
    draws = np.random.default_rng(0)
    pixels = np.clip(draws.normal(size=(ROWS, BANDS, SIDE, SIDE)) * 0.5, -1, 1).astype(np.float16)
    return store_latents(
        folder,
        pixels,
        labels=labels,
        splits=labels == 1,
        spec={"classes": classes},
        z=BANDS,
        moments="mean",
        codec=CODEC_ID,
        tiles_digest=tiles_digest,
        num_classes=classes,
        **more,
    )


def write_experiment(path: Path, **evaluations: dict[str, Any]) -> Path:
    """Write a configuration whose run is the trained one."""
    dataset = {
        "title": "toy",
        "source": {"kind": "image-folder", "synthetic": {}},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 100},
        "tiles": {"size": SIDE},
        "codec": "pixels",
    }
    content = {
        "datasets": {"toy": dataset},
        "codecs": {"pixels": {"kind": "pixel"}},
        "runs": {"toy": {"dataset": "toy"}},
        "extractors": {"e": {"kind": "squeezenet", "path": "anywhere"}},
        "evaluations": {name: {"run": "toy", "extractor": "e"} | one for name, one in evaluations.items()},
    }
    path.write_text(json.dumps(content))
    return path


def images_of(job: SamplingJob) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(job.out.parent.glob("shard-*.npy"))])


def train_small(root: Path, latents: Path, *, steps: int, **run: Any) -> Path:
    values = {"dataset": "toy", "model": SMALL, "steps": steps, "global_batch_size": 8, "lr": 1e-2} | run
    out = root / "runs" / f"step_{steps:07d}.json"
    paths, settings = Paths(latents=latents, store=root / "store", out=out), training.RunConfig.model_validate(values)
    assert train(TrainJob(name="toy", run=settings, seed=5, spec={}, paths=paths, until=steps), Group()) == 0
    return out


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> dict[str, Path]:
    """Return the manifests of tiles, latents and a run of 6 steps, which keeps step 4."""
    root = tmp_path_factory.mktemp("trained")
    tiles, latents = write_tiles(root / "tiles"), write_latents(root / "latents")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    out = train_small(root, latents, steps=6, keep_every=4, checkpoint_every=2)
    torch.set_num_threads(threads)
    return {"tiles": tiles, "latents": latents, "checkpoint": out}


@pytest.fixture
def make_latents() -> Callable[..., Path]:
    return write_latents


@pytest.fixture
def job(tmp_path: Path, trained_run: dict[str, Path]) -> Callable[..., SamplingJob]:
    """Return a factory of sampling jobs with output folder `folder`; options are fields of `SamplingJob` or the evaluation.

    The evaluation's `checkpoint` is the option `at`, because a job has a field of that name.
    """

    def make(folder: str = "samples", *, at: str | int = "final", **changes: Any) -> SamplingJob:
        fields = {name: changes.pop(name) for name in list(changes) if name in SamplingJob.__dataclass_fields__}
        values = {
            "run": "toy",
            "num_images": 6,
            "sampler": "ddpm",
            "steps": 4,
            "guidance_scale": 1.5,
            "extractor": "any",
        }
        evaluation = evaluations.EvaluationConfig.model_validate(values | {"checkpoint": at} | changes)
        defaults: dict[str, Any] = {
            "name": "toy",
            "evaluation": evaluation,
            "spec": evaluation.model_dump(mode="json", exclude={"extractor", "real_split", "batch_size"}),
            "codec_settings": PIXEL,
            "codec": None,
            "out": tmp_path / folder / "manifest.json",
            **trained_run,
        }
        return SamplingJob(**(defaults | fields))

    return make
