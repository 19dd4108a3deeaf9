"""A training of two ranks loses a rank or its launcher: everybody ends at once, and the next start goes on to the same bytes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dithc.comm import guard
from dithc.log import read_metrics
from dithc.runs import Manifest, Store
from tests.ranks import needs_launcher

MARK = "DITHC_TEST_MARK"
MOST_SECONDS = 120.0  # an exchange waits longer for a rank that is gone
STEPS = 100_000
pytestmark = [
    pytest.mark.slow,
    pytest.mark.mpi,
    needs_launcher,
]


class Training:
    """A training of two ranks under `dithc launch`, and every process that belongs to it."""

    def __init__(self, config: Path, latents: Path, store: Path, *, until: int) -> None:
        self.store, self.mark = store, uuid.uuid4().hex
        self.out = store / f"step_{until:07d}.json"
        train = ["train", "--config", config, "--run", "small", "--latents", latents, "--store", store]
        dithc = [Path(sys.executable).parent / "dithc"]
        command = [*dithc, *train, "--until", str(until), "--out", self.out]
        launch = [*dithc, "launch", "--launcher", "mpiexec", "--ranks", "2", "--cpus", "1", "--", *command]
        self.said = store.with_name(f"said-{self.mark}")
        with self.said.open("w") as said:
            environment = os.environ | {MARK: self.mark}
            self.process = subprocess.Popen(launch, env=environment, stdout=said, stderr=said, text=True)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=600)

    def alive(self) -> list[int]:
        """Processes of this training that are neither gone nor dead and not yet waited for."""
        return [pid for pid, _ in self._processes()]

    def rank(self, number: int) -> int:
        """The process of a rank, which is the child of its guard."""
        found = {pid: environment for pid, environment in self._processes() if told(environment, number)}
        (child,) = [pid for pid in found if parent_of(pid) in found]
        return child

    def connecting(self, number: int) -> int:
        """The process of a rank, as soon as there is one: it loads MPI then, and waits for the others."""
        deadline = time.monotonic() + 600
        while True:
            assert time.monotonic() < deadline, self.said.read_text()
            with suppress(ValueError, OSError):
                return self.rank(number)

    def mpiexec(self) -> int:
        """The process of the launcher."""
        (found,) = [pid for pid in self.alive() if parent_of(pid) == self.process.pid]
        return found

    def wait_for_progress(self) -> None:
        """Returns when steps were made and there is a newer checkpoint than before."""
        before, deadline = newest(self.store), time.monotonic() + 600
        while newest(self.store) <= before:
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Status and messages, when all processes have ended, in the time they have for that."""
        deadline = time.monotonic() + MOST_SECONDS
        status = self.process.wait(timeout=MOST_SECONDS)
        while alive := self.alive():
            assert time.monotonic() < deadline, f"still running: {alive}\n{self.said.read_text()}"
            time.sleep(0.05)
        return status, self.said.read_text()

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{MARK}={self.mark}" in environment and state not in "ZX":
                yield int(folder.name), environment


def told(environment: list[str], number: int) -> bool:
    """Whether a launcher, of whichever MPI, told a process with this environment that it is this rank."""
    return any(f"{name}={number}" in environment for name in guard.RANK_VARIABLES)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def newest(store: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max((step for folder in store.glob("small-*") for step in Store(folder).steps()), default=0)


def hashes(out: Path) -> dict[str, str]:
    return {Path(entry["path"]).name: entry["sha256"] for entry in Manifest.read(out).files}


@pytest.fixture
def start(tmp_path, latents, job):
    """Starts a training of a store up to a step."""
    toy = {
        "title": "toy",
        "source": {"kind": "image-folder", "synthetic": {}},
        "display": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    run = job(steps=STEPS, until=1, keep_last=3).run.model_dump(mode="json")
    content = {"datasets": {"toy": toy}, "codecs": {"pixels": {"kind": "pixel"}}, "runs": {"small": run}}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(content))
    (tmp_path / "killed").mkdir()
    return lambda name, until=STEPS: Training(config, latents, tmp_path / name, until=until)


@pytest.mark.sampled("killed ranks")
def test_killed_rank_or_launcher_ends_all_within_seconds_and_training_continues_to_the_same_bytes(start, tmp_path):
    for number in (0, 1):
        with start("killed") as training:
            training.wait_for_progress()
            pid = training.rank(number)
            os.kill(pid, signal.SIGKILL)
            status, said = training.end()
            assert status not in (0, 75, 76)
            assert f"rank {number} (process {pid}) was ended by SIGKILL" in said  # its guard
            assert re.search(rf"rank {number} of 2( \(process {pid}\))? has ended", said), said  # the other rank
    for victim in ("mpiexec", "launch"):
        with start("killed") as training:
            training.wait_for_progress()
            os.kill(training.mpiexec() if victim == "mpiexec" else training.process.pid, signal.SIGKILL)
            status, _ = training.end()
            assert status == -signal.SIGKILL if victim == "launch" else status == 128 + signal.SIGKILL
    until = newest(tmp_path / "killed") + 3
    for name in ("killed", "whole"):
        with start(name, until) as training:
            status = training.process.wait(timeout=600)
            assert status == 0, training.said.read_text()
    assert hashes(tmp_path / "killed" / training.out.name) == hashes(tmp_path / "whole" / training.out.name)


@pytest.mark.sampled("killed ranks")
@pytest.mark.parametrize("number", [0, 1])
def test_rank_killed_while_ranks_connect_is_started_again_with_all(number, start):
    with start("killed", 3) as training:
        pid = training.connecting(number)
        os.kill(pid, signal.SIGKILL)
        status, said = training.end()
    assert status == 0, said
    assert f"rank {number} (process {pid}) was ended by SIGKILL" in said
    assert f"rank {number} was ended by SIGKILL before the ranks had found each other: ending them" in said
    with start("whole", 3) as whole:
        assert whole.end()[0] == 0
    assert hashes(training.out) == hashes(whole.out)


@pytest.mark.sampled("killed ranks")
def test_ranks_end_with_what_the_launcher_started_on_their_node(start):
    with start("killed") as training:
        training.wait_for_progress()
        proxies = [
            pid for pid in training.alive() if Path(f"/proc/{pid}/comm").read_text().strip() == guard.HYDRA_PROXY
        ]
        if not proxies:
            pytest.skip("mpiexec is not MPICH's")
        os.kill(proxies[0], signal.SIGKILL)
        status, said = training.end()
        assert status not in (0, 75, 76), said


@pytest.mark.sampled("killed ranks")
@pytest.mark.parametrize(("number", "to"), [(signal.SIGTERM, 1), (signal.SIGUSR1, "launch")])
def test_signal_stops_both_ranks_at_one_step_saves_and_ends_with_75(number, to, start, tmp_path):
    with start("killed") as training:
        training.wait_for_progress()
        os.kill(training.process.pid if to == "launch" else training.rank(to), number)
        status, said = training.end()
    assert status == 75, said
    stopped = set(re.findall(r"stopping after step (\d+) of", said))
    assert stopped == {str(newest(tmp_path / "killed"))}
    assert f"signal {number.name}" in said or to == 1
    (folder,) = (tmp_path / "killed").glob("small-*")
    assert read_metrics(folder / "metrics")[-1]["step"] == newest(tmp_path / "killed")
