"""Fixtures: a small latent dataset, a small run, and jobs of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dithc.config import training
from dithc.runs import Manifest
from dithc.train import Job

CHANNELS, SIDE, ROWS, CLASSES = 4, 8, 24, 3
SMALL = {"preset": "DiT-S/2", "hidden_size": 32, "depth": 2, "num_heads": 2}


def write_latents(
    folder: Path, *, seed: int = 0, channels: int = CHANNELS, codec: str = "test-codec", held_out: int = 0
) -> Path:
    """Write latents of `CLASSES` classes, each with its own mean, in the layout of dithc.data; return the manifest.

    The training rows do not depend on the number of held-out rows after them.
    """
    folder.mkdir(parents=True)
    draws = np.random.default_rng(seed)
    rows = ROWS + held_out
    labels = (np.arange(rows) % CLASSES).astype(np.int32)
    pattern = draws.normal(size=(CLASSES, channels, SIDE, SIDE))
    mean = pattern[labels] + 0.1 * draws.normal(size=(rows, channels, SIDE, SIDE))
    moments = np.concatenate([mean, np.full_like(mean, -6.0)], axis=1).astype(np.float16)
    arrays = {
        "shard-00000.npy": moments,
        "flip-00000.npy": moments[..., ::-1],
        "labels.npy": labels,
        "splits.npy": (np.arange(rows) >= ROWS).astype(np.uint8),
    }
    for name, array in arrays.items():
        np.save(folder / name, np.ascontiguousarray(array))
    entries = {entry["path"]: entry for entry in Manifest.entries(folder, [folder / name for name in arrays])}
    index = {
        "schema_version": 1,
        "count": rows,
        "z": channels,
        "h": SIDE,
        "w": SIDE,
        "moments": "mean_logvar",
        "scale": 1.0,
        "codec": codec,
        "tiles_digest": "none",
        "classes": [f"class {label}" for label in range(CLASSES)],
        "num_classes": CLASSES,
        "shards": [entries["shard-00000.npy"] | {"rows": rows, "flip": entries["flip-00000.npy"]}],
        "labels": entries["labels.npy"],
        "splits": entries["splits.npy"],
    }
    (folder / "index.json").write_text(json.dumps(index))
    manifest = folder / "manifest.json"
    Manifest(stage="latents", name=folder.name, spec={"seed": seed}, files=list(entries.values())).write(manifest)
    return manifest


def small_run(**changes: Any) -> training.Run:
    """Return the settings of a training run with steps of milliseconds."""
    values = {"dataset": "toy", "model": SMALL, "steps": 6, "global_batch": 8, "lr": 1e-3, "checkpoint_every": 2}
    return training.Run.model_validate(values | changes)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_latents() -> Callable[..., Path]:
    return write_latents


@pytest.fixture
def latents(tmp_path: Path) -> Path:
    return write_latents(tmp_path / "latents")


@pytest.fixture
def job(tmp_path: Path, latents: Path) -> Callable[..., Job]:
    """Return a factory of jobs on the small latents.

    `store` names a folder; other keywords are fields of `Job` or the run.
    """

    def make(store: str = "store", *, until: int = 6, **changes: Any) -> Job:
        fields = {name: changes.pop(name) for name in list(changes) if name in Job.__dataclass_fields__}
        run = small_run(**changes)
        without_effect = {"steps", "segment", "micro_batch", "checkpoint_every", "keep_last", "validate_every"}
        spec = run.model_dump(mode="json", exclude=without_effect)
        defaults: dict[str, Any] = {
            "name": "small",
            "run": run,
            "seed": 0,
            "spec": spec,
            "latents": latents,
            "init": None,
            "store": tmp_path / store,
            "until": until,
            "out": tmp_path / store / f"step_{until:07d}.json",
        }
        return Job(**(defaults | fields))

    return make
