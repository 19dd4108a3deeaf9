"""Reruns after an edit, a new scene or a damaged result, with real runs of one small experiment.

The tests share a finished project, leave it finished, and run in file order.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.workflow.conftest import make_project, snakemake

pytestmark = [pytest.mark.slow, pytest.mark.alternates("whole workflows", "run again")]

SMALL = Path(__file__).parent / "small.yaml"
EVALUATED = ["sample after", "features_generated after", "fid after", "report"]
SECOND = [
    "ingest second",
    "tiles second",
    "latents second",
    "finetune after 0000004",
    "features_real second all all classifier",
]
JOB = re.compile(r"^(?:local)?rule (\w+):\n((?: {4}.*\n)*)", re.MULTILINE)


def add_image(path: Path, *, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def run(folder: Path, *arguments: str, profile: str = "profiles/local") -> tuple[list[str], str]:
    """Run the workflow to its end; return its jobs (rule and wildcards, sorted) and its output."""
    done = snakemake(folder, "--profile", profile, "--configfile", "small.yaml", *arguments)
    assert done.returncode == 0, done.stdout[-6000:]
    jobs, text = (
        [],
        re.sub(r"(?m)^ {4}(?=((local)?rule |    ))", "", done.stdout),
    )  # a dry run indents the jobs of a group
    for rule, lines in JOB.findall(text):
        values = re.search(r"wildcards: (.*)", lines)
        words = [wildcard.partition("=")[2] for wildcard in values.group(1).split(", ")] if values else []
        jobs.append(" ".join([rule, *words]))
    assert bool(jobs) != ("Nothing to be done" in done.stdout)
    return sorted(job for job in jobs if job != "all"), done.stdout


def manifest(folder: Path, name: str) -> Path:
    path = folder / "results" / "small" / name
    return path if path.suffix == ".json" else path / "manifest.json"


def digest(folder: Path, name: str) -> str:
    return str(json.loads(manifest(folder, name).read_text())["digest"])


def files(folder: Path, name: str) -> list[Path]:
    path = manifest(folder, name)
    return [path.parent / entry["path"] for entry in json.loads(path.read_text())["files"]]


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "small.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_project(tmp_path_factory.mktemp("reruns") / "project")
    shutil.copy(SMALL, folder / "small.yaml")
    for seed, name in enumerate(
        f"{source}/{label}/{i}.png" for source in ("first", "second") for label in "ab" for i in range(8)
    ):
        add_image(folder / name, seed=seed)
    jobs, _ = run(folder)
    assert jobs == sorted(
        [
            *SECOND,
            *EVALUATED,
            "ingest first",
            "tiles first",
            "latents first",
            "pretrain before 0000004",
            "extractor classifier",
        ]
    )
    return folder


def test_title_reruns_the_report_and_neutral_settings_rerun_no_stage(small: Path) -> None:
    edit(small, "title: Small", "title: Smaller  # and a comment")
    edit(
        small,
        "global_batch_size: 4",
        "global_batch_size: 4\n    micro_batch_size: 2\n    log_every: 3\n    keep_last: 3\n    on_nonfinite: skip",
    )
    edit(small, "    keep_last: 2\n", "")
    (small / "elsewhere").mkdir()
    shutil.copytree(small / "first", small / "elsewhere" / "first")  # a copy has new times
    shutil.rmtree(small / "first")
    os.rename(small / "second", small / "elsewhere" / "second")
    (small / "second").symlink_to("elsewhere/second")
    written = (
        *(
            "--config",
            "machine={launcher: mpiexec, ranks_per_node: 2, strategy: dp}",
            "resources={train: {runtime: 7}}",
        ),
        *(
            "results=./results",
            f"store={small}/store/",
            f"datasets={{first: {{source: {{path: {small}/elsewhere/first/}}}}}}",
        ),
    )
    assert run(small, *written)[0] == ["report"]
    assert "Smaller" in (small / "results" / "small" / "report.html").read_text()
    assert run(small, *written)[0] == []
    profiles = [
        ("cluster", "{max_walltime_minutes: 9}"),
        ("profiles/generic", "{stop_before_walltime: false, ranks_per_node: 2, cpus_per_rank: 9}"),
    ]
    for profile, machine in profiles:
        assert run(small, "-n", *written, f"machine={machine}", profile=profile)[0] == [], "runs move unchanged"
    os.rename(small / "elsewhere" / "first", small / "first")
    edit(small, "    micro_batch_size: 2\n", "")  # changes only the rounding of sums, which later training would show


@pytest.mark.sampled("reruns")
def test_forced_stage_reruns_with_the_report_only(small: Path) -> None:
    assert run(small, "-R", "fid")[0] == ["fid after", "report"]


@pytest.mark.sampled("reruns")
def test_changed_learning_rate_reruns_the_run_and_downstream_stages(small: Path) -> None:
    before, after = digest(small, "runs/before/step_0000004.json"), digest(small, "runs/after/step_0000004.json")
    edit(small, "init_from_run: before}", "init_from_run: before, lr: 0.002}")
    files(small, "latents/second")[
        0
    ].unlink()  # rebuilt at the same time: downstream jobs of both have separate reasons
    assert run(small)[0] == sorted(["latents second", "finetune after 0000004", *EVALUATED])
    assert digest(small, "runs/before/step_0000004.json") == before
    assert digest(small, "runs/after/step_0000004.json") != after


@pytest.mark.sampled("reruns")
def test_new_scene_reruns_ingestion_and_downstream_stages(small: Path) -> None:
    add_image(small / "second" / "b" / "new.png", seed=100)
    assert run(small)[0] == sorted([*SECOND, *EVALUATED])
    scenes = json.loads(manifest(small, "scenes/second").read_text())["summary"]
    assert scenes["accepted"] == 17


@pytest.mark.sampled("reruns")
def test_deleted_and_truncated_results_are_rebuilt_with_equal_digests(small: Path) -> None:
    names = ("runs/after/step_0000004.json", "samples/after", "fid/after")
    before = [digest(small, name) for name in names]
    checkpoint = next(path for path in files(small, names[0]) if path.name == "optimizer.safetensors")
    checkpoint.unlink()
    images = files(small, names[1])[0]
    os.truncate(images, images.stat().st_size - 1)
    manifest(small, names[2]).unlink()
    planned, plan = run(small, "-n")
    assert "optimizer.safetensors is missing" in plan
    assert f"{images.name} has" in plan
    done, output = run(small)
    assert done == planned == sorted(["finetune after 0000004", "sample after", "fid after", "report"])
    assert "continuing from step 3" in output
    assert "1 of 1 shards made now" in output
    assert [digest(small, name) for name in names] == before
    assert run(small)[0] == []


@pytest.mark.sampled("reruns")
def test_verify_reports_and_repairs_altered_files(small: Path) -> None:
    weights = files(small, "extractors/classifier")[0]
    metrics = weights.parent / "metrics" / "metrics.jsonl"
    altered = [weights, metrics, manifest(small, "fid/after"), small / "results/small/report.json"]
    for path in altered:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
    files(small, "latents/first")[0].unlink()
    shown = manifest(small, "latents/first").read_bytes()
    command = [str(Path(sys.executable).parent / "dithc"), "verify", "results/small", "store"]
    found = subprocess.run(command, cwd=small, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    for path in altered:
        assert path.name in found.stdout
    rejected = subprocess.run([*command, "--repair"], cwd=small, capture_output=True, text=True, check=False)
    assert (rejected.returncode, "fix:" in rejected.stderr) == (2, True)
    assert weights.exists(), "files that cannot be rebuilt are kept"
    more = ["--repair", "--profile", "profiles/local", "--configfile", "small.yaml"]
    repaired = subprocess.run([*command, *more], cwd=small, capture_output=True, text=True, check=False)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert repaired.stdout.splitlines()[-1].endswith("all intact")
    assert manifest(small, "latents/first").read_bytes() == shown, "a manifest contains values of another execution"
    assert run(small)[0] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("product", "again"),
    [
        ("scenes/second", "ingest second"),
        ("tiles/second", "tiles second"),
        ("latents/second", "latents second"),
        ("runs/before/step_0000004.json", "pretrain before 0000004"),
        ("extractors/classifier", "extractor classifier"),
        ("features/after", "features_generated after"),
    ],
)
def test_damaged_file_reruns_one_job_and_preserves_manifests(small: Path, product: str, again: str) -> None:
    before = {path: path.read_bytes() for path in (small / "results").rglob("manifest.json")}
    next(path for path in files(small, product) if path.suffix in (".npy", ".safetensors")).unlink()
    assert run(small)[0] == [again]
    assert {path: path.read_bytes() for path in before} == before
    assert run(small)[0] == []


@pytest.mark.long
def test_moved_store_is_reused_without_retraining(small: Path) -> None:
    os.rename(small / "store", small / "kept")
    before = digest(small, "fid/after")
    done, output = run(small, "--config", "store=kept")
    assert "pretrain before 0000004" in done
    assert "finetune after 0000004" in done
    assert output.count("writing only the manifest") == 2
    assert "0 of 1 shards made now" in output
    assert digest(small, "fid/after") == before
    os.rename(small / "kept", small / "store")
