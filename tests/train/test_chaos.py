"""Tests of training on two ranks with failed writes and damaged checkpoints: it ends in the same bytes.

Kills at random moments are in tests/attack.
"""

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import needs_launcher
from tests.train.conftest import hashes, store_of

PROGRAM = Path(__file__).parent / "chaos_program.py"
STEPS, CHECKPOINT_EVERY = 60, 3
LAUNCH = [
    sys.executable,
    "-m",
    "dithc",
    "launch",
    "--launcher",
    "mpiexec",
    "--ranks",
    "2",
    "--cpus-per-rank",
    "1",
    "--",
]
NO_FAULT = {"kind": "none", "rank": 0, "step": 0}


def attempt(folder: Path, jobs: list[Any], fault: dict[str, Any]) -> tuple[int, str]:
    """Run the training with a fault; return the launcher's status and the output."""
    (folder / "jobs.pickle").write_bytes(pickle.dumps(jobs))
    command = [*LAUNCH, sys.executable, str(PROGRAM), str(folder / "jobs.pickle"), json.dumps(fault)]
    environment = os.environ | {"GOMP_SPINCOUNT": "10000"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stderr


def damage(job: Any, kind: str, draws: random.Random) -> None:
    """Truncate a file of the newest checkpoint, or flip one bit of it."""
    store = store_of(job)
    path = draws.choice(sorted(store.path(store.steps()[-1]).glob("*.safetensors")))
    content = bytearray(path.read_bytes())
    if kind == "cut":
        content = content[: draws.randrange(len(content))]
    else:
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    path.write_bytes(content)


@pytest.mark.sampled("killed ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_training_after_write_faults_and_damage_is_byte_identical(job, tmp_path):
    settings = {"steps": STEPS, "until": STEPS, "checkpoint_every": CHECKPOINT_EVERY, "strategy": "dp"}
    faulted, whole, draws, newest = job("faulted", **settings), job("whole", **settings), random.Random(1), 0
    for kind, damage_kind in (("blocks", None), ("disk", "flip"), ("commit", "cut"), ("rename", None)):
        rank = 0 if kind in ("commit", "rename") else draws.randrange(2)
        status, text = attempt(tmp_path, [faulted], {"kind": kind, "rank": rank, "step": newest + 3 * CHECKPOINT_EVERY})
        assert status not in (0, 75), text
        assert kind != "disk" or (status, f"rank {rank}: " in text, "too large" in text) == (2, True, True), text
        newest = max(store_of(faulted).steps())
        assert newest < STEPS
        if damage_kind is not None:
            damage(faulted, damage_kind, draws)
    status, text = attempt(tmp_path, [faulted, whole], NO_FAULT)
    assert status == 0, text
    names = {f"{kind}-0000{number}-of-00002.safetensors" for kind in ("model", "ema", "optimizer") for number in (1, 2)}
    assert set(hashes(whole)) == names
    assert hashes(faulted) == hashes(whole)
    assert not list(store_of(faulted).folder.glob(".step_*")), "something half-written was left"
