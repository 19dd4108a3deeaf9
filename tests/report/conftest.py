"""A small results tree: manifests, metrics, events and images with realistic numbers."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from dithc.config import ExperimentConfig, load, stage_spec
from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.integrity import dump_checksummed_line
from dithc.core.measurements import Measurement, Table
from dithc.data import write_png
from dithc.report import write_report
from dithc.report.collect import collect_records, gather_manifests
from dithc.report.records import ReportRecords

SHA = "b2f7" * 16
TILES, SIDE = 10, 16  # of the dataset with pixels
SAMPLES = 4
SOURCES: dict[str, dict[str, Any]] = {
    "landscape": {"kind": "image-folder", "synthetic": {"classes": 4}},
    "sentinel2": {"kind": "sentinel2", "synthetic": {"scenes": 2}},
    "gaofen2": {"kind": "gaofen2", "path": "/data/gaofen2"},
}
BANDS = {
    "landscape": ["R", "G", "B"],
    "sentinel2": ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"],
    "gaofen2": ["B", "G", "R", "NIR"],
}
FID = {"untrained": 318.427, "start": 171.0853, "final": 48.2619}
KID = {"untrained": 0.3412, "start": 0.1873, "final": 0.0312}

BENCH = Measurement(
    title="DiT-S/2, medians of 5 rounds",
    tables=[Table(title="Training step", head=["Variant", "s per step"], rows=[["eager", "1.234 ± 0.01"]])],
    conditions={"isa": "isa c"},
)


def configuration() -> dict[str, Any]:
    """Return pre-training on images and two fine-tuning runs, each scored untrained, before and after."""
    tuned = ("sentinel2", "gaofen2")
    return {
        "name": "fake",
        "title": "Two satellites from one pre-training",
        "datasets": {
            name: {
                "title": {"landscape": "Landscapes", "sentinel2": "Sentinel-2", "gaofen2": "Gaofen-2"}[name],
                "source": source,
                "rendering": {
                    "bands": ["B04", "B03", "B02"] if name == "sentinel2" else ["R", "G", "B"],
                    "low": 0,
                    "high": 0.3,
                },
                "codec": "small" if name != "gaofen2" else "pixels",
            }
            for name, source in SOURCES.items()
        },
        "codecs": {"small": {"kind": "kl-vae", "train_dataset": "sentinel2"}, "pixels": {"kind": "pixel"}},
        "runs": {
            "pretrain": {"dataset": "landscape", "steps": 400, "steps_per_job": 200, "global_batch_size": 32},
            **{
                f"finetune-{name}": {
                    "dataset": name,
                    "init_from_run": "pretrain",
                    "steps": 200,
                    "global_batch_size": 32,
                }
                for name in tuned
            },
        },
        "extractors": {"own": {"kind": "classifier", "train_dataset": "landscape"}},
        "evaluations": {
            f"{name}-{checkpoint}": {
                "run": f"finetune-{name}",
                "checkpoint": checkpoint,
                "num_images": 256,
                "steps": 50,
                "extractor": "own",
            }
            for name in tuned
            for checkpoint in FID
        },
    }


def write_grid(path: Path, seed: int, *, roughness: float) -> None:
    """Write 64 patches of colored noise, smooth or rough, in a grid of 256 x 256."""
    generator = np.random.default_rng(seed)
    smooth = np.kron(generator.random((32, 32, 3)), np.ones((8, 8, 1)))
    pixels = (1 - roughness) * smooth + roughness * generator.random((256, 256, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, (255 * pixels).astype(np.uint8))


def score(checkpoint: str, run: str) -> dict[str, Any]:
    """Return the numbers of a FID manifest; Gaofen-2 has slightly higher scores."""
    factor = 1.25 if "gaofen2" in run else 1.0
    note = "the extractor was trained on these tiles: comparable with nothing"
    return {
        "fid": FID[checkpoint] * factor,
        "memorized_fraction": 0.031 if checkpoint == "final" else None,
        "memorized_fraction_val": 0.017 if checkpoint == "final" else None,
        "kid": KID[checkpoint] * factor,
        "kid_interval": [KID[checkpoint] * factor - 0.0196, KID[checkpoint] * factor + 0.0196],
        "floor": 11.8734 * factor,
        "floor_n": [617, 617],
        "n_real": 1234,
        "n_generated": 256,
        "extractor": "classifier.safetensors",
        "kind": "classifier",
        "sha256": SHA,
        "resize": "none",
        "comparable_to_published": False,
        "note": note,
        "warnings": [note, "fewer images than features: the covariance is singular"],
    }


def write_tiles(folder: Path, bands: list[str]) -> dict[str, Any]:
    """Write tiles of smooth noise with their table; return further fields of dataset.json."""
    level = np.random.default_rng(7).uniform(0.03, 0.2, (TILES, len(bands), SIDE // 4, SIDE // 4))
    np.save(folder / "shard-00000.npy", (np.kron(level, np.ones((4, 4))) * 1e4).astype(np.int16))
    splits = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    columns = {"status": ["accepted"] * TILES, "reason": [""] * TILES, "split": splits, "scene_id": ["scene"] * TILES}
    columns |= {
        "y": [0] * TILES,
        "x": list(range(0, SIDE * TILES, SIDE)),
        "shard": [0] * TILES,
        "row": list(range(TILES)),
    }
    columns |= {"cell": ["a"] * TILES, "label": [0] * TILES, "tile_id": [f"t{row}" for row in range(TILES)]}
    columns |= {"lon": [10 + 0.01 * row for row in range(TILES)], "lat": [50.0] * TILES}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "tiles.parquet")
    return {
        "schema_version": 1, "dtype": "int16", "scale": 1e-4, "offset": 0.0, "size": SIDE, "kind": "sentinel2",
        "shards": [{"file": "shard-00000.npy", "count": TILES}],
        "counts": {"accepted": TILES, "rejected": {}, "splits": {"train": 6, "val": 2, "test": 2}},
        "display": {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3},
    }  # fmt: skip


def write_samples(folder: Path) -> list[dict[str, Any]]:
    """Write a few images with one value in every band."""
    folder.mkdir(parents=True, exist_ok=True)
    values = np.linspace(-0.9, 0.9, SAMPLES)[:, None, None, None] * np.ones((1, 12, SIDE, SIDE))
    np.save(folder / "shard-00000.npy", values.astype(np.float16))
    np.save(folder / "rgb-00000.npy", (values[:, :3] * 100 + 120).astype(np.uint8))
    return Manifest.entries(folder, [folder / "shard-00000.npy", folder / "rgb-00000.npy"])


class Tree:
    """Writer of the manifests of the experiment below `root`; `paths` lists them."""

    def __init__(self, root: Path, content: dict[str, Any] | None = None) -> None:
        self.root = root
        self.experiment: ExperimentConfig = load(content or configuration())
        self.paths: list[Path] = []

    configuration = staticmethod(configuration)
    score = staticmethod(score)
    sha256 = SHA

    @staticmethod
    def change(path: Path, **fields: Any) -> None:
        """Rewrite fields of a manifest."""
        replace(Manifest.read(path), **fields).write(path)

    def folder(self, stage: str, name: str) -> Path:
        return self.root / "results" / "fake" / stage / name

    def write(
        self, stage: str, name: str, *, inputs: Sequence[Path] = (), file: str = "manifest.json", **known: Any
    ) -> Path:
        """Write the manifest of a stage and record its path."""
        spec_stage = {"inputs": "synthesize", "scenes": "ingest", "codecs": "codec", "runs": "train"}.get(stage, stage)
        spec_stage = {"samples": "sample", "extractors": "extractor"}.get(spec_stage, spec_stage)
        spec_name = "own" if stage == "features" else name
        path = self.folder(stage, name) / file
        Manifest(
            stage=spec_stage,
            name=name,
            spec=json.loads(json.dumps(stage_spec(self.experiment, spec_stage, spec_name))),
            inputs={str(item): Manifest.read(item).digest for item in inputs},
            **{"wall_seconds": 3.5, **known},
        ).write(path)
        self.paths.append(path)
        return path

    def dataset(self, name: str, *, pixels: bool = False) -> Path:
        """Write scenes, tiles (with `pixels` also their arrays) and latents; return the manifest of the tiles."""
        if SOURCES[name].get("synthetic"):
            self.write("inputs", name, wall_seconds=11.0)
        scenes = self.write("scenes", name, summary={"scenes": 6, "accepted": 5, "rejected": {"checksum mismatch": 1}})
        folder, bands = self.folder("tiles", name), BANDS[name]
        write_grid(folder / "grid.png", zlib.crc32(name.encode()), roughness=0.15)
        level = np.linspace(0.06, 0.24, len(bands))
        statistics = [
            {"band": band, "mean": one, "std": one / 3, "low": one / 5, "high": one * 2.2}
            for band, one in zip(bands, level.tolist(), strict=True)
        ]
        info = {"bands": bands, "units": "reflectance", "gsd_m": 10.0, "classes": ["one"], "statistics": statistics}
        if pixels:
            info |= write_tiles(folder, bands)
        (folder / "dataset.json").write_text(json.dumps(info))
        numbers = {
            "accepted": 1234,
            "rejected": {"less than 95 % valid": 41, "across two splits": 17},
            "splits": {"train": 1100, "val": 70, "test": 64},
            "bands": bands,
            "size": 64,
        }
        tiles = self.write("tiles", name, summary=numbers, inputs=[scenes], wall_seconds=21.0)
        self.write("latents", name, summary={"count": 1234, "shape": [4, 16, 16]}, inputs=[tiles], wall_seconds=34.0)
        return tiles

    def codec(self, tiles: Path) -> None:
        """Write the trained codec with its grid."""
        write_grid(self.folder("codecs", "small") / "grid.png", 5, roughness=0.2)
        numbers = {"steps": 400, "loss": 0.0123, "psnr_db": 31.4159, "parameters": 812345}
        self.write("codecs", "small", summary=numbers, inputs=[tiles], wall_seconds=95.0)

    def run(self, name: str) -> Path:
        """Write metrics, events and the manifests of every segment; return the last manifest."""
        settings, generator = self.experiment.runs[name], np.random.default_rng(len(name))
        folder = self.folder("runs", name)
        store = self.root / "store" / f"{name}-0123456789ab"
        folder.mkdir(parents=True, exist_ok=True)
        start = 1.01 if settings.init_from_run is None else 0.42
        with (folder / "metrics.jsonl").open("w") as file:
            for step in range(1, settings.steps + 1):
                loss = (0.16 + (start - 0.16) * np.exp(-step / 45)) * generator.lognormal(0, 0.09)
                row = {"step": step, "loss": loss, "images_per_second": 41 + 2 * generator.standard_normal()}
                row |= {"val_loss": 0.2 + 1 / step} if step % 40 == 0 and settings.init_from_run is None else {}
                file.write(dump_checksummed_line(row))
        for step in (0, 130):
            CheckpointStore(store).event("started", step=step)
        numbers = {
            "mean_loss_first_10": 0.9321 if settings.init_from_run is None else 0.4102,
            "mean_loss_last_100": 0.1623,
            "initial_loss": 1.0173,
            "val_loss": 0.2083 if settings.init_from_run is None else None,
            "seconds_per_step_median": 0.7812,
            "images_per_second": 40.96,
            "peak_rss_bytes": 1932735283,
            "ranks": 2,
            "threads": 1,
            "parameters": 32963360,
            "dtype": "fp32",
            "checkpoint_folder": str(store),
            "metrics": str(folder / "metrics.jsonl"),
            "ema_note": "EMA 0.9999 with warm-up: after 200 steps it averages over the last tenth of them.",
        }
        last = None
        for step in range(settings.segment_steps, settings.steps + 1, settings.segment_steps):
            file_name = f"step_{step:07d}.json"
            last = self.write("runs", name, file=file_name, summary={**numbers, "step": step}, wall_seconds=160.0)
        assert last is not None
        return last

    def evaluation(self, name: str, run: Path) -> None:
        """Write samples with their grid, and the score."""
        settings = self.experiment.evaluations[name]
        quality = {"untrained": 1.0, "start": 0.5, "final": 0.2}[settings.checkpoint]
        write_grid(self.folder("samples", name) / "grid.png", 9, roughness=quality)
        drawn = {
            "images": settings.num_images,
            "images_per_second": 5.1,
            "weights": "ema",
            "rendering_digest": "0123456789ab",
        }
        files = write_samples(self.folder("samples", name)) if name == "sentinel2-final" else []
        samples = self.write("samples", name, summary=drawn, inputs=[run], wall_seconds=50.0, files=files)
        features = self.features(name, samples, rows=SAMPLES if files else 0)
        numbers = score(settings.checkpoint, settings.run)
        self.write("fid", name, summary=numbers, inputs=[features], wall_seconds=1.0)

    def features(self, name: str, images: Path, *, rows: int = 0) -> Path:
        """Write features of tiles or samples: row i of tiles is at i, of samples at 2 i + 0.1."""
        numbers = {
            "extractor": "classifier.safetensors",
            "sha256": SHA,
            "resize": "none",
            "comparable_to_published": False,
        }
        path, files = self.folder("features", name) / "shard-00000.npy", []
        if rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            values = np.arange(rows) * 1.0 if name.endswith(".own") else np.arange(rows) * 2 + 0.1
            np.save(path, np.stack([values, 5 - values], axis=1).astype(np.float32))
            files = Manifest.entries(path.parent, [path])
        return self.write("features", name, summary=numbers, inputs=[images], wall_seconds=7.0, files=files)

    def records(self, **more: Any) -> ReportRecords:
        return collect_records(self.experiment, gather_manifests(self.experiment, self.paths), **more)

    def all(self) -> "Tree":
        """Write every stage."""
        tiles = {name: self.dataset(name, pixels=name == "sentinel2") for name in self.experiment.datasets}
        self.codec(tiles["sentinel2"])
        self.write("extractors", "own", inputs=[tiles["landscape"]], wall_seconds=25.0)
        runs = {name: self.run(name) for name in self.experiment.runs}
        for name in ("sentinel2", "gaofen2"):
            self.features(f"{name}.all.all.own", tiles[name], rows=TILES if name == "sentinel2" else 0)
        for name, evaluation in self.experiment.evaluations.items():
            self.evaluation(name, runs[evaluation.run])
        return self


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A complete results tree, which tests only read."""
    return Tree(tmp_path_factory.mktemp("tree")).all()


@pytest.fixture(scope="session")
def out(tree: Tree) -> Path:
    """The page of the complete tree, next to its numbers and figures."""
    bench, path = tree.root / "bench.json", tree.root / "out" / "report.html"
    bench.write_text(json.dumps({"bench": "step", **BENCH.to_content()}))
    more: dict[str, Any] = {"machine": ["a <small> machine"], "config": Path("results/fake/config.json")}
    write_report(tree.experiment, tree.paths, out=path, benches={"step": bench}, **more)
    return path


@pytest.fixture(scope="session")
def tree_class() -> type[Tree]:
    """Return the class `Tree`: `tree_class(root, configuration)` makes a tree."""
    return Tree


@pytest.fixture
def small(tmp_path: Path) -> Tree:
    """A dataset, its codec and a run."""
    tree = Tree(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    tree.run("pretrain")
    return tree
