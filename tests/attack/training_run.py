"""A training run of several ranks under `dithc launch`, observed from outside: processes, roles and end."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.engine.comm.environment import HYDRA_PROXY
from dithc.engine.comm.launch import exit_report

MARK = "DITHC_TEST_MARK"
MAX_SECONDS = 120.0  # an exchange waits longer for a lost rank
DITHC = Path(sys.executable).parent / "dithc"


class TrainingRun:
    """Context of a training run under `dithc launch` and all of its processes; it leaves no processes."""

    def __init__(self, config: Path, latents: Path, store: Path, *, until: int, ranks: int = 2) -> None:
        self.store, self.mark = store, uuid.uuid4().hex
        self.out = store / f"step_{until:07d}.json"
        train = ["train", "--config", config, "--run", "small", "--latents", latents, "--store", store]
        command = [DITHC, *train, "--until-step", str(until), "--out", self.out]
        launch = [
            DITHC,
            "launch",
            "--launcher",
            "mpiexec",
            "--ranks",
            str(ranks),
            "--cpus-per-rank",
            "1",
            "--",
            *command,
        ]
        self.log = store.with_name(f"log-{self.mark}")
        with self.log.open("w") as log:
            environment = os.environ | {MARK: self.mark}
            folder = store.parent  # `dithc launch` records here that the ranks have connected
            self.process = subprocess.Popen(launch, env=environment, stdout=log, stderr=log, text=True, cwd=folder)

    def __enter__(self) -> "TrainingRun":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=600)

    def alive(self) -> list[int]:
        """Return the processes of this run that still exist and are not zombies."""
        return [pid for pid, _ in self._processes()]

    def rank(self, number: int) -> int:
        found = self._of_rank(number)
        (child,) = [pid for pid in found if parent_of(pid) in found]
        return child

    def watchdog(self, number: int) -> int:
        """Return the process of a rank that the launcher started: its watchdog, once it exists."""
        found = self._of_rank(number)
        (top,) = [pid for pid in found if parent_of(pid) not in found]
        return top

    def mpiexec(self) -> int:
        (found,) = [pid for pid in self.alive() if parent_of(pid) == self.process.pid]
        return found

    def proxy(self) -> int:
        (found,) = [pid for pid in self.alive() if name_of(pid) == HYDRA_PROXY]
        return found

    def victim(self, name: str, number: int) -> int:
        if name in ("rank", "watchdog"):
            return self.rank(number) if name == "rank" else self.watchdog(number)
        return {"launch": lambda: self.process.pid, "mpiexec": self.mpiexec, "proxy": self.proxy}[name]()

    def wait_for_progress(self) -> None:
        before, deadline = newest_step(self.store), time.monotonic() + 600
        while newest_step(self.store) <= before:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def end(self, *, most_seconds: float = MAX_SECONDS) -> tuple[int, str]:
        """Wait for the end of all processes within a time limit; return status and messages."""
        deadline = time.monotonic() + most_seconds
        status = self.process.wait(timeout=most_seconds)
        while alive := self.alive():
            assert time.monotonic() < deadline, f"still running: {alive}\n{self.log.read_text()}"
            time.sleep(0.05)
        return status, self.log.read_text()

    def _of_rank(self, number: int) -> set[int]:
        """Return the processes to which a launcher of any MPI assigned this rank."""
        names = {f"{name}={number}" for name in exit_report.RANK_VARIABLES}
        return {pid for pid, environment in self._processes() if names.intersection(environment)}

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{MARK}={self.mark}" in environment and state not in "ZX":
                yield int(folder.name), environment


def parent_of(pid: int) -> int:
    """Return the parent of a process; OSError if the process has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def newest_step(store: Path) -> int:
    return max((step for folder in store.glob("small-*") for step in CheckpointStore(folder).steps()), default=0)


def hashes(out: Path) -> dict[str, str]:
    return {Path(entry["path"]).name: entry["sha256"] for entry in Manifest.read(out).files}
