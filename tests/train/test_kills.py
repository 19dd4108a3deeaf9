"""Tests of training on two ranks with a lost rank or launcher: joint end, restart to the same bytes."""

import os
import re
import signal
from pathlib import Path

import pytest

from dithc.core.logging import read_metrics
from tests.attack.training_run import TrainingRun, hashes, newest_step
from tests.ranks import launcher, needs_launcher
from tests.train.conftest import config_of

STEPS = 100_000
pytestmark = [pytest.mark.slow, pytest.mark.mpi, needs_launcher]


def named_memory(pid: int) -> set[str]:
    """Return the names of shared memory that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line[line.index("/") :] for line in lines if " /dev/shm/" in line}


@pytest.fixture
def start(tmp_path, latents, job):
    (tmp_path / "killed").mkdir()

    def start(name, until=STEPS, checkpoint_every=2):
        run = job(steps=STEPS, until=1, keep_last=3, checkpoint_every=checkpoint_every).run
        return TrainingRun(config_of(tmp_path / "config.yaml", run), latents, tmp_path / name, until=until)

    return start


@pytest.mark.sampled("killed ranks")
def test_killed_rank_or_launcher_ends_all_ranks_and_resume_is_identical(start, tmp_path):
    for number in (0, 1):
        with start("killed") as training:
            training.wait_for_progress()
            pid = training.rank(number)
            segments = {path for path in named_memory(pid) if "mpich_shm" in path and "deleted" not in path}
            os.kill(pid, signal.SIGKILL)
            status, output = training.end()
            assert not segments, "it would outlive ranks that are killed"
            assert status not in (0, 75, 76)
            assert f"rank {number} (process {pid}) was ended by SIGKILL" in output  # its watchdog
            assert re.search(rf"rank {number} of 2( \(process {pid}\))? has ended", output), output  # the other rank
    for victim in ("mpiexec", "launch"):
        with start("killed") as training:
            training.wait_for_progress()
            os.kill(training.mpiexec() if victim == "mpiexec" else training.process.pid, signal.SIGKILL)
            status, _ = training.end()
            assert status == -signal.SIGKILL if victim == "launch" else status == 128 + signal.SIGKILL
    until = newest_step(tmp_path / "killed") + 3
    for name in ("killed", "whole"):
        with start(name, until) as training:
            status = training.process.wait(timeout=600)
            assert status == 0, training.log.read_text()
    assert hashes(tmp_path / "killed" / training.out.name) == hashes(tmp_path / "whole" / training.out.name)


INTERRUPTED_ONCE = """
import os, sys
from pathlib import Path

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "dithc.cli.train":
            Path(os.environ["DITHC_TEST_ONCE"]).touch()
            raise KeyboardInterrupt

if os.environ.get("PMI_RANK") == "1" and not os.path.exists(os.environ["DITHC_TEST_ONCE"]):
    sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.sampled("killed ranks")
def test_rank_interrupted_before_the_watchdog_restarts_all_ranks(start, tmp_path, monkeypatch):
    """Its launcher receives a status instead of a signal, and waits like the other rank."""
    if launcher().vendor != "mpich":
        pytest.skip("mpiexec is not MPICH's: others end all ranks with the first")
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_ONCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DITHC_TEST_ONCE", str(tmp_path / "once"))
    with start("killed", 3) as training:
        status, output = training.end()
    assert (tmp_path / "once").exists(), "no rank was interrupted"
    assert status == 0, output
    assert "rank 1 ended with status 130 before the ranks were connected: ending them" in output


@pytest.mark.sampled("killed ranks")
@pytest.mark.parametrize("number", [0, 1])
def test_stopped_rank_is_reported_ends_all_ranks_and_training_resumes(number, start, tmp_path):
    with start("killed", checkpoint_every=100) as training:
        training.wait_for_progress()
        pid = training.rank(number)
        os.kill(pid, signal.SIGSTOP)
        status, output = training.end(most_seconds=600)
    assert status not in (0, 2, 75, 76)
    stopped = rf"rank {number} \(process {pid}, stopped by a signal\)"
    assert re.search(rf"waiting for \d+ s for {stopped}.*; gives up after [\d.]+ s", output), output
    assert re.search(rf"not all ranks took part within [\d.]+ s: {stopped}", output), output
    with start("killed", newest_step(tmp_path / "killed") + 3) as training:
        assert training.end()[0] == 0


@pytest.mark.sampled("killed ranks")
@pytest.mark.parametrize(("number", "to"), [(signal.SIGTERM, 1), (signal.SIGUSR1, "launch")])
def test_signal_stops_and_saves_both_ranks_at_the_same_step_with_status_75(number, to, start, tmp_path):
    with start("killed") as training:
        training.wait_for_progress()
        os.kill(training.process.pid if to == "launch" else training.rank(to), number)
        status, output = training.end()
    assert status == 75, output
    stopped = set(re.findall(r"stopping after step (\d+) of", output))
    assert stopped == {str(newest_step(tmp_path / "killed"))}
    assert f"signal {number.name}" in output or to == 1
    (folder,) = (tmp_path / "killed").glob("small-*")
    assert read_metrics(folder / "metrics")[-1]["step"] == newest_step(tmp_path / "killed")
