"""`dithc bench quality` from scenes to its figure, killed once: it continues, and measures no step twice."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dithc.core.artifacts import Manifest
from dithc.core.integrity import load_checksummed
from tests.sampling import commit_of
from tests.workflow.conftest import processes_in

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

SEED = os.environ.get("DITHC_ATTACK_SEED") or commit_of("HEAD") or "0"
CONTENDERS = ["--candidates", "flow,worse", "--seeds", "0", "--budget-minutes", "0.15"]
COMPARISON = ["--config", "quality.yaml", *CONTENDERS, "--json", "quality.json"]
FIRST, LAST = 6, 45  # manifests at the time of the kill: the first calibration, most scores
MAX_SECONDS, LEFT_SECONDS = 1500.0, 120.0


def start(folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    command = [str(Path(sys.executable).parent / "dithc"), "bench", "quality", *COMPARISON]
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT, preexec_fn=restore_sigint)


def restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def manifests(results: Path) -> list[Path]:
    return [*results.glob("*/*/manifest.json"), *results.glob("runs/*/step_*.json")]


def read_measurements(results: Path) -> dict[str, Any]:
    found = {str(path): dict(Manifest.read(path).summary) for path in results.glob("runs/calibrate-*/step_*.json")}
    return found | {str(path): path.read_bytes() for path in results.glob("plan.json")}


def kill(process: "subprocess.Popen[bytes]", folder: Path, *, hard: bool) -> None:
    """Send SIGINT to the command, or SIGKILL to Snakemake; return after all processes have ended."""
    if hard:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    else:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LEFT_SECONDS) != 0
    end = time.monotonic() + LEFT_SECONDS
    while remaining := processes_in(folder):
        assert time.monotonic() < end, f"still running: {remaining}"
        time.sleep(0.2)


def test_killed_comparison_resumes_without_remeasuring_steps(project: Path, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "quality.yaml", project)
    results, log = project / "results" / "quality-quality", tmp_path / "said"
    draws = random.Random(f"quality {SEED}")
    count, later, hard = draws.randint(FIRST, LAST), draws.uniform(0.0, 3.0), draws.random() < 0.5
    process = start(project, log)
    end = time.monotonic() + MAX_SECONDS
    while len(manifests(results)) < count:
        assert process.poll() is None, f"it ended before the kill:\n{log.read_text()}"
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    time.sleep(later)
    kill(process, project, hard=hard)
    print(f"seed {SEED}: killed with {count} manifests, {later:.1f} s later, {'SIGKILL' if hard else 'SIGINT'}")
    before = read_measurements(results)
    assert before, "the calibration existed"
    assert not (project / "quality.json").exists()

    assert start(project, log).wait(timeout=MAX_SECONDS) == 0, log.read_text()
    after = read_measurements(results)
    assert {name: after[name] for name in before} == before
    check(
        json.loads((project / "quality.json").read_text()),
        load_checksummed((results / "plan.json").read_text())["seconds"],
    )
    assert (results / "quality.png").read_bytes().startswith(b"\x89PNG")
    assert "flow over baseline: R " in log.read_text()


def check(result: dict[str, Any], sealed: dict[str, float]) -> None:
    names = ["baseline", "flow", "worse"]
    assert {(run["variant"], run["seed"]) for run in result["runs"]} == {(name, 0) for name in names}
    assert {name: result["seconds_per_step"][name] for name in names} == {
        name: seconds for name in names for key, seconds in sealed.items() if key.startswith(f"{name} ")
    }
    assert set(result["ratios"]) == {"flow", "worse"}
    for ratio in result["ratios"].values():
        (row,) = ratio["by_seed"]
        assert row["seeds"] == [0, 0]
        assert row["wall"] == ratio["wall"] > 0
        assert row["flop"] == ratio["flop"] > 0
