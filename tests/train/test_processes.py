"""Tests with real processes: killed, stopped by a signal, several together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dithc.comm import Group
from dithc.log import read_metrics
from dithc.runs import Manifest, Store
from dithc.train import train
from tests.ranks import needs_launcher, on_ranks, started

STEPS = 400
THREE_TRAININGS = """
import pickle, sys
from dithc.comm import connect
from dithc.train import train
with connect(3) as group, open(sys.argv[1], "rb") as file:
    assert [train(job, group) for job in pickle.load(file)] == [0, 0, 0]
"""


@pytest.fixture
def config(tmp_path: Path, job) -> Path:
    """Write a configuration in which the run `small` is the run of the fixture `job`."""
    run = job(steps=STEPS, until=1, micro_batch=3).run.model_dump(mode="json")
    dataset = {
        "title": "toy",
        "source": {"kind": "image-folder", "synthetic": {}},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    content = {"datasets": {"toy": dataset}, "codecs": {"pixels": {"kind": "pixel"}}, "runs": {"small": run}}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(content))
    return path


def command(config: Path, latents: Path, store: Path, *, until: int) -> list[str]:
    words = [sys.executable, "-m", "dithc", "train", "--config", str(config), "--run", "small", "--store", str(store)]
    return [*words, "--latents", str(latents), "--until", str(until), "--out", str(store / f"step_{until:07d}.json")]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | more


def hashes(out: Path) -> dict[str, str]:
    return {Path(entry["path"]).name: entry["sha256"] for entry in Manifest.read(out).files}


def wait_for_checkpoint(store: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 600
    while not list(store.glob(f"small-*/step_*{step}/checkpoint.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_training_killed_or_stopped_in_the_middle_ends_in_the_same_bytes(number, config, latents, tmp_path, job):
    store = tmp_path / "stopped"
    words = command(config, latents, store, until=STEPS)
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_for_checkpoint(store, 4, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
    steps = Store(next(store.glob("small-*"))).steps()
    assert 4 <= steps[-1] < STEPS, said
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 75, said
        assert f"signal {number.name}" in said
    end = steps[-1] + 5
    done = subprocess.run(
        command(config, latents, store, until=end), env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    whole = job("whole", until=end, steps=STEPS, micro_batch=3)
    train(whole, Group())
    assert hashes(store / f"step_{end:07d}.json") == hashes(whole.out)


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_learn_the_same_as_one(config, latents, tmp_path, job):
    words = [*started(2), *command(config, latents, tmp_path / "two", until=6)]
    done = subprocess.run(words, env=environment(DITHC_EXPECTED_RANKS="2"), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    two, one = tmp_path / "two" / "step_0000006.json", job("one", until=6)
    train(one, Group())
    rows = [read_metrics(Store.of_run(out)[0].folder / "metrics") for out in (two, one.out)]
    assert len(rows[0]) == len(rows[1]) == 6
    # The first loss is a sum over the batch in another order; later losses amplify the rounding of earlier updates.
    for left, right in zip(*rows, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=100 * 8 * 2**-24)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-3)
    assert Manifest.read(two).numbers["ranks"] == 2


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_three_ranks_with_unequal_shares_resume_to_the_bit(tmp_path, job):
    """Sums of three ranks or more depend on their order, and 8 images are not divisible by three."""
    jobs = [job("whole", micro_batch=2), job("parts", micro_batch=2, until=3), job("parts", micro_batch=2)]
    done = on_ranks(THREE_TRAININGS, ranks=3, given=jobs, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hashes(jobs[0].out) == hashes(jobs[2].out)


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_wrong_number_of_ranks_ends_before_any_work(config, latents, tmp_path):
    words = [*started(2), *command(config, latents, tmp_path / "store", until=2)]
    done = subprocess.run(words, env=environment(DITHC_EXPECTED_RANKS="4"), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2, done.stderr
    assert "number of ranks" in done.stderr
    assert not (tmp_path / "store").exists()
