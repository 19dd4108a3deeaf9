"""Fixtures: a small latent dataset, a small run, and jobs of it."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dithc.config import MachineConfig, training
from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.logging import read_metrics
from dithc.core.tensor_files import read_tensors
from dithc.engine.comm import Group
from dithc.train import Paths, TrainingJob, train

CHANNELS, SIDE, ROWS, CLASSES = 4, 8, 24, 3
PATHS, JOB_FIELDS = [list(kind.__dataclass_fields__) for kind in (Paths, TrainingJob)]
SMALL = {"preset": "DiT-S/2", "hidden_size": 32, "depth": 2, "num_heads": 2}


def store_latents(
    folder: Path,
    stored: np.ndarray,
    *,
    labels: np.ndarray,
    splits: np.ndarray,
    spec: dict[str, Any],
    columns: dict[str, np.ndarray] | None = None,
    **index: Any,
) -> Path:
    """Write arrays, their mirror images, index and manifest in the layout of `Latents`; return the manifest."""
    folder.mkdir(parents=True)
    arrays = {f"{name}.npy": column for name, column in (columns or {}).items()} | {
        "shard-00000.npy": stored,
        "flip-00000.npy": stored[..., ::-1],
        "labels.npy": labels.astype(np.int32),
        "splits.npy": splits.astype(np.uint8),
    }
    for name, array in arrays.items():
        np.save(folder / name, np.ascontiguousarray(array))
    entries = {entry["path"]: entry for entry in Manifest.entries(folder, [folder / name for name in arrays])}
    index |= {
        "schema_version": 1,
        "count": len(stored),
        "h": SIDE,
        "w": SIDE,
        "scale": 1.0,
        "shards": [entries["shard-00000.npy"] | {"rows": len(stored), "flip": entries["flip-00000.npy"]}],
        **{name: entries[f"{name}.npy"] for name in ("labels", "splits", *(columns or {}))},
    }
    (folder / "index.json").write_text(json.dumps(index))
    manifest = folder / "manifest.json"
    Manifest(stage="latents", name=folder.name, spec=spec, files=list(entries.values())).write(manifest)
    return manifest


def write_latents(
    folder: Path, *, seed: int = 0, channels: int = CHANNELS, codec: str = "test-codec", held_out: int = 0
) -> Path:
    """Write latents of `CLASSES` classes, each with its own mean, in the layout of dithc.data; return the manifest.

    The training rows do not depend on the number of held-out rows after them.
    """
    draws = np.random.default_rng(seed)
    rows = ROWS + held_out
    labels = np.arange(rows) % CLASSES
    pattern = draws.normal(size=(CLASSES, channels, SIDE, SIDE))
    mean = pattern[labels] + 0.1 * draws.normal(size=(rows, channels, SIDE, SIDE))
    moments = np.concatenate([mean, np.full_like(mean, -6.0)], axis=1).astype(np.float16)
    return store_latents(
        folder,
        moments,
        labels=labels,
        splits=np.arange(rows) >= ROWS,
        spec={"seed": seed},
        z=channels,
        moments="mean_logvar",
        codec=codec,
        tiles_digest="none",
        classes=[f"class {label}" for label in range(CLASSES)],
        num_classes=CLASSES,
    )


def small_run(**changes: Any) -> training.RunConfig:
    """Return the settings of a training run with steps of milliseconds."""
    values = {"dataset": "toy", "model": SMALL, "steps": 6, "global_batch_size": 8, "lr": 1e-3, "checkpoint_every": 2}
    return training.RunConfig.model_validate(values | changes)


def store_of(job: TrainingJob) -> CheckpointStore:
    return CheckpointStore(next(job.paths.store.glob("small-*")))


def checkpoint(job: TrainingJob) -> CheckpointStore.Checkpoint:
    """Return the last checkpoint of a finished job."""
    return store_of(job).open(job.until)


def hashes(job: TrainingJob) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in checkpoint(job).files}


def rows(job: TrainingJob) -> list[dict[str, float]]:
    return read_metrics(store_of(job).folder / "metrics")


def config_of(path: Path, run: training.RunConfig, **sections: Any) -> Path:
    """Write a configuration in which `small` is this run on a dataset `toy`."""
    dataset = {
        "title": "toy",
        "source": {"kind": "image-folder", "synthetic": {}},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    content = {"datasets": {"toy": dataset}, "codecs": {"pixels": {"kind": "pixel"}}} | sections
    path.write_text(json.dumps(content | {"runs": {"small": run.model_dump(mode="json")}}))
    return path


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_latents() -> Callable[..., Path]:
    return write_latents


def weights_of(job: TrainingJob, kind: str = "ema", *, step: int | None = None) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, by default the last."""
    return load_file(store_of(job).open(job.until if step is None else step).weights(kind))


def tensors_of(job: TrainingJob, step: int | None = None) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, by default the last, assembled from all ranks' files."""
    folder = store_of(job).open(job.until if step is None else step).folder
    files = {kind: read_tensors(folder / f"{kind}.safetensors") for kind in ("model", "ema", "optimizer")}
    return {f"{kind} {name}": value for kind, held in files.items() for name, value in held.items()}


def assert_equal(found: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
    assert found.keys() == truth.keys()
    assert [name for name, value in truth.items() if not torch.equal(found[name], value)] == []


@pytest.fixture
def base(job: Callable[..., TrainingJob]) -> TrainingJob:
    """Return a finished job of two steps."""
    one = job("base", until=2, lr=0.01)
    assert train(one, Group()) == 0
    return one


@pytest.fixture
def latents(tmp_path: Path) -> Path:
    return write_latents(tmp_path / "latents")


@pytest.fixture
def job(tmp_path: Path, latents: Path) -> Callable[..., TrainingJob]:
    """Return a factory of jobs on the small latents.

    `store` names a folder; other keywords are fields of `TrainingJob`, its paths, its machine, or its run.
    """

    def make(store: str = "store", *, until: int = 6, **changes: Any) -> TrainingJob:
        def take(names: Iterable[str]) -> dict[str, Any]:
            return {name: changes.pop(name) for name in names if name in changes}

        fields, paths, machine = take(JOB_FIELDS), take(PATHS), take(list(MachineConfig.model_fields))
        run = small_run(**changes)
        without_effect = {
            "steps",
            "steps_per_job",
            "micro_batch_size",
            "checkpoint_every",
            "keep_last",
            "validate_every",
        }
        spec = run.model_dump(mode="json", exclude=without_effect)
        defaults: dict[str, Any] = {
            "name": "small",
            "run": run,
            "seed": 0,
            "spec": spec,
            "paths": Paths(
                **{"latents": latents, "store": tmp_path / store, "out": tmp_path / store / f"step_{until:07d}.json"}
                | paths
            ),
            "machine": MachineConfig(**machine),
            "until": until,
        }
        return TrainingJob(**(defaults | fields))

    return make
