"""Tests of training on two ranks with kills, full disks and damaged checkpoints: it ends in the same bytes."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dithc.runs import Manifest, Store
from tests.ranks import needs_launcher

PROGRAM = Path(__file__).parent / "chaos_program.py"
STEPS, CHECKPOINT_EVERY = 200, 3
STEP_SECONDS = 0.02
LAUNCH = [sys.executable, "-m", "dithc", "launch", "--launcher", "mpiexec", "--ranks", "2", "--cpus", "1", "--"]
STOPPED = 75
ENDED_BY_FAULT = {"disk": {2}, "launcher": {-signal.SIGKILL}}  # for other faults: any failure status
FAULTS = ["kill"] * 5 + ["launcher"] * 3 + ["blocks", "blocks", "commit", "rename"] + ["disk"] * 2 + ["cut", "flip"] * 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mpi,
    needs_launcher,
]


def store_of(job: Any) -> Store | None:
    return next((Store(path) for path in job.store.glob("small-*")), None)


def newest_step(job: Any) -> int:
    store = store_of(job)
    return max(store.steps(), default=0) if store else 0


def wait_until_gone(folder: Path) -> None:
    """Wait for the ranks of a killed launcher, which save and exit without it."""
    deadline = time.monotonic() + 600
    for path in folder.glob("rank-*"):
        while Path("/proc", path.name.rpartition("-")[2]).exists():
            assert time.monotonic() < deadline, f"{path.name} lives on"
            time.sleep(0.02)
        path.unlink()


def attempt(folder: Path, jobs: list[Any], fault: dict[str, Any]) -> tuple[int, str]:
    """Start the training run and let the fault happen; return the launcher's status and the output."""
    (folder / "jobs.pickle").write_bytes(pickle.dumps(jobs))
    (folder / "reached").unlink(missing_ok=True)
    words = [*LAUNCH, sys.executable, str(PROGRAM), str(folder / "jobs.pickle"), json.dumps(fault)]
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, env=os.environ | {"GOMP_SPINCOUNT": "10000"})
        deadline = time.monotonic() + 600
        while process.poll() is None and not (fault["kind"] == "launcher" and (folder / "reached").exists()):
            assert time.monotonic() < deadline, (folder / "said.txt").read_text()
            time.sleep(0.01)
        if process.poll() is None:
            process.kill()
        status = process.wait(timeout=600)
    wait_until_gone(folder)
    return status, (folder / "said.txt").read_text()


def damage(job: Any, kind: str, draws: random.Random) -> None:
    """Truncate a file of the newest checkpoint, or flip one bit of it."""
    store = store_of(job)
    assert store is not None
    path = draws.choice(sorted(store.path(store.steps()[-1]).glob("*.safetensors")))
    content = bytearray(path.read_bytes())
    if kind == "cut":
        content = content[: draws.randrange(len(content))]
    else:
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    path.write_bytes(content)


def endure(job: Any, folder: Path, kinds: list[str], draws: random.Random) -> list[str]:
    """Run the training through all faults; return the output of each attempt."""
    said, is_damaged = [], False
    for kind in kinds:
        if kind in ("cut", "flip"):
            damage(job, kind, draws)
            is_damaged = True
            continue
        step = newest_step(job) + draws.randint(CHECKPOINT_EVERY + 1, 4 * CHECKPOINT_EVERY)
        fault = {"kind": kind, "rank": 0 if kind in ("launcher", "commit", "rename") else draws.randrange(2)}
        fault |= {"step": step, "delay": draws.uniform(0.0, 3 * STEP_SECONDS), "seconds": STEP_SECONDS}
        status, text = attempt(folder, [job], fault)
        said.append(text)
        assert status in ENDED_BY_FAULT.get(kind, {status}) - {0, STOPPED}, f"{fault} ended with {status}:\n{text}"
        assert not is_damaged or "skipping damaged checkpoint" in text, text
        is_damaged = False
        if kind == "disk":
            assert f"rank {fault['rank']}: " in text, text
            assert "too large" in text, text
    return said


def hashes(job: Any) -> dict[str, str]:
    return {Path(entry["path"]).name: entry["sha256"] for entry in Manifest.read(job.out).files}


def check(job: Any, tmp_path: Path, kinds: list[str], *, seed: int, steps: int) -> None:
    settings = {"steps": steps, "until": steps, "checkpoint_every": CHECKPOINT_EVERY, "strategy": "dp"}
    struck, whole = job("struck", **settings), job("whole", **settings)
    endure(struck, tmp_path, kinds, random.Random(seed))
    assert newest_step(struck) < steps, "the training was over before its last fault"
    status, text = attempt(tmp_path, [struck, whole], {"kind": "none"})
    assert status == 0, text
    assert set(hashes(whole)) == {
        f"{kind}-0000{number}-of-00002.safetensors" for kind in ("model", "ema", "optimizer") for number in (1, 2)
    }
    assert hashes(struck) == hashes(whole)
    store = store_of(struck)
    assert store is not None
    assert not list(store.folder.glob(".step_*")), "something half-written was left"


@pytest.mark.sampled("killed ranks")
def test_four_faults_do_not_change_a_bit(job, tmp_path):
    check(job, tmp_path, ["blocks", "disk", "flip", "launcher"], seed=1, steps=80)


@pytest.mark.long
def test_twenty_random_faults_do_not_change_a_bit(job, tmp_path):
    draws = random.Random(20)
    kinds = draws.sample(FAULTS, len(FAULTS))
    first = next(index for index, kind in enumerate(kinds) if kind == "kill")
    kinds[0], kinds[first] = kinds[first], kinds[0]  # the first attempt must leave a checkpoint to damage
    assert len(kinds) == 20
    check(job, tmp_path, kinds, seed=20, steps=STEPS)
