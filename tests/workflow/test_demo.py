"""The reduced demo runs to its report, and a killed run continues exactly."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dithc.core.artifacts import Manifest
from tests.workflow.conftest import LOCAL, command, make_project, snakemake

pytestmark = pytest.mark.slow


def manifest(folder: Path, name: str) -> dict[str, object]:
    content = json.loads((folder / "results" / "demo" / name).read_text())
    assert isinstance(content, dict)
    return content


def test_demo_report_references_no_network_resources(finished: Path) -> None:
    page = (finished / "results" / "demo" / "report.html").read_text()
    assert "data:image/webp;base64," in page
    assert 'src="http' not in page
    assert 'href="http' not in page.split("</head>")[0]


def test_manifests_of_all_stages_pass_verification(finished: Path) -> None:
    stages = {path.parent.parent.name for path in (finished / "results" / "demo").rglob("manifest.json")}
    assert {"inputs", "scenes", "tiles", "codecs", "latents", "samples", "features", "fid"} <= stages
    verify = subprocess.run(
        [Path(command()[0]).parent / "dithc", "verify", "results", "store"],
        cwd=finished,
        capture_output=True,
        text=True,
        check=False,
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr


def test_second_run_starts_no_jobs(finished: Path) -> None:
    assert "Nothing to be done" in snakemake(finished, *LOCAL).stdout


@pytest.fixture
def encoded_project(finished: Path, tmp_path: Path) -> Path:
    folder = make_project(tmp_path / "project")
    (folder / "results" / "demo").mkdir(parents=True)
    for stage in ("inputs", "scenes", "tiles", "codecs", "latents"):
        shutil.copytree(finished / "results/demo" / stage, folder / "results/demo" / stage, copy_function=shutil.copy2)
    shutil.copytree(finished / ".snakemake" / "metadata", folder / ".snakemake" / "metadata")
    return folder


@pytest.mark.sampled("after the demo")
def test_two_ranks_match_the_losses_of_one_rank(finished: Path, encoded_project: Path) -> None:
    target = "runs/pretrain/step_0000020.json"
    two_ranks = "machine={launcher: mpiexec, ranks_per_node: 2}"
    done = snakemake(encoded_project, f"results/demo/{target}", *LOCAL, "--config", two_ranks)
    assert done.returncode == 0, done.stdout[-3000:]
    two, one = (Manifest.read(folder / "results" / "demo" / target).summary for folder in (encoded_project, finished))
    assert (two["ranks"], one["ranks"]) == (2, 1)
    assert two["initial_loss"] == pytest.approx(one["initial_loss"], rel=1e-5)
    assert two["mean_loss_last_100"] == pytest.approx(one["mean_loss_last_100"], rel=1e-3)


# Python runs this file at process start: the training run pauses after twelve steps until it is requested to stop.
STANDS_STILL = """
import sys

if "train" in sys.orig_argv[1:3]:
    import time
    from pathlib import Path

    from dithc.train.job import StopRequests

    original, calls = StopRequests.reason, 0

    def reason(self, *, grace_seconds):
        global calls
        calls += 1
        while calls == 13 and (found := original(self, grace_seconds=None)) is None:
            Path("paused").touch()
            time.sleep(0.02)
        return original(self, grace_seconds=grace_seconds)

    StopRequests.reason = reason
"""


@pytest.mark.sampled("after the demo")
def test_killed_workflow_continues_to_the_same_weights(finished: Path, encoded_project: Path) -> None:
    folder = encoded_project
    target = "results/demo/runs/pretrain/step_0000040.json"
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text(STANDS_STILL)
    paths = os.pathsep.join(filter(None, (str(folder / "start"), os.environ.get("PYTHONPATH"))))
    with (folder / "first.log").open("w") as log:
        environment = {**os.environ, "PYTHONPATH": paths}
        first = subprocess.Popen(command(target, *LOCAL), cwd=folder, stdout=log, stderr=log, env=environment)
    deadline = time.monotonic() + 600
    while not (folder / "paused").exists():
        assert time.monotonic() < deadline, (folder / "first.log").read_text()[-3000:]
        assert first.poll() is None, (folder / "first.log").read_text()[-3000:]
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    while list(folder.glob("store/pretrain-*/lease.json")):
        assert time.monotonic() < deadline, "the orphaned training run did not stop"
        time.sleep(0.2)
    assert list(folder.glob("store/pretrain-*/step_0000012/checkpoint.json")), "it must save before it stops"
    assert not (folder / target).exists()
    assert snakemake(folder, *LOCAL, "--unlock").returncode == 0
    again = snakemake(folder, target, *LOCAL)
    assert again.returncode == 0, again.stdout[-3000:]
    interrupted, whole = (json.loads((place / target).read_text()) for place in (folder, finished))
    assert interrupted["digest"] == whole["digest"], "weights after a kill differ from an uninterrupted run"
    assert interrupted["summary"]["mean_loss_last_100"] == whole["summary"]["mean_loss_last_100"]


@pytest.mark.sampled("after the demo")
def test_edited_rendering_reuses_the_codec(finished: Path) -> None:
    edit = finished / "edit.yaml"
    edit.write_text("datasets: {sentinel2: {rendering: {low: 0, high: 0.4}}}\n")
    before = manifest(finished, "codecs/sentinel2-vae/manifest.json")["digest"]
    done = snakemake(finished, "results/demo/codecs/sentinel2-vae/manifest.json", *LOCAL, "edit.yaml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "localrule tiles:" in done.stdout
    assert "reusing it" in done.stdout
    assert manifest(finished, "codecs/sentinel2-vae/manifest.json")["digest"] == before
