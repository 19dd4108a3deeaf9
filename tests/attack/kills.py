"""Kills of training runs at random moments.

Each chain repeatedly starts a small training run. Each start is killed at a random moment of its lifetime, from the
exec of the launcher to its end, until one start completes. All checkpoints of the chain are then compared with those
from an undisturbed run. The target (a rank, its watchdog, mpiexec, hydra's proxy, `dithc launch`) and the signal are also
random. A target that does not exist yet is killed as soon as it exists.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dithc.core.artifacts import CheckpointStore
from tests.attack.training_run import TrainingRun
from tests.train.conftest import small_run, write_latents

STEPS, EVERY = 120, 4
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
RANKS = (2, 4)
MAX_CONSECUTIVE = 4  # then the run is not disturbed and must complete
# Requirement: no process remains 30 s after the end of the launcher. The launcher itself may continue, because it
# restarts ranks lost during their start.
LEFT_SECONDS, END_SECONDS = 30.0, 300.0


@dataclass(frozen=True)
class Kill:
    """Target, signal and moment of a kill: `moment` is a share of the lifetime of an undisturbed run."""

    ranks: int
    victim: str
    rank: int
    signal: signal.Signals
    moment: float


def kills(seed: str) -> Iterator[Kill]:
    """Yield kills without end, reproducibly from the seed."""
    draws = random.Random(f"kills {seed}")
    while True:
        ranks = draws.choice(RANKS)
        victim = draws.choice(("rank", "rank", "watchdog", "launch", "mpiexec", "proxy"))
        yield Kill(ranks, victim, draws.randrange(ranks), draws.choice(SIGNALS), draws.random())


@dataclass
class Outcome:
    """Result of a kill: newest checkpoint, seconds until the kill (None if too late), status, and fault if any."""

    kill: Kill
    step: int = 0
    began: float | None = None
    status: int = 0
    fault: str = ""


class Campaign:
    """Chains of killed training runs below a folder, one at a time for each number of ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._latents = write_latents(folder / "latents")
        toy = {
            "title": "toy",
            "source": {"kind": "image-folder", "synthetic": {}},
            "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
            "codec": "pixels",
        }
        run = small_run(steps=STEPS, checkpoint_every=EVERY, keep_last=STEPS).model_dump(mode="json")
        content = {"datasets": {"toy": toy}, "codecs": {"pixels": {"kind": "pixel"}}, "runs": {"small": run}}
        self._config = folder / "config.yaml"
        self._config.write_text(json.dumps(content))
        self._whole: dict[int, dict[str, str]] = {}
        self._life: dict[int, float] = {}
        self._chain: dict[int, int] = {}  # kills in the current chain
        self._number = 0

    def strike(self, kill: Kill) -> Outcome:
        """Execute one kill; end and compare the chain after a complete run or enough kills."""
        if kill.ranks not in self._whole:
            self._whole[kill.ranks] = self._train_without_kills(f"whole-{kill.ranks}", kill.ranks)
        name = f"chain-{kill.ranks}-{self._number}"
        outcome = Outcome(kill)
        with self._start(name, kill.ranks) as training:
            output = self._strike(training, outcome)
        self._chain[kill.ranks] = self._chain.get(kill.ranks, 0) + 1
        if outcome.status in (2, 76) and not outcome.fault:
            outcome.fault = f"status {outcome.status}:\n{output}"
        if not outcome.fault and (outcome.status == 0 or self._chain[kill.ranks] == MAX_CONSECUTIVE):
            self._compare(name, outcome)
        if outcome.fault or kill.ranks not in self._chain:
            self._chain.pop(kill.ranks, None)
            self._number += 1
        return outcome

    def _strike(self, training: TrainingRun, outcome: Outcome) -> str:
        kill, start = outcome.kill, time.monotonic()
        due = start + kill.moment * self._life[kill.ranks]
        time.sleep(max(0.0, due - time.monotonic()))
        while training.process.poll() is None and outcome.began is None:
            with suppress(ValueError, OSError):
                victim = training.victim(kill.victim, kill.rank)
                outcome.step = max((int(path.name[5:]) for path in training.store.glob("small-*/step_*")), default=0)
                os.kill(victim, kill.signal)
                outcome.began = time.monotonic() - start
        struck = time.monotonic()
        try:
            outcome.status = training.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            outcome.fault = f"the launcher has not ended after {END_SECONDS:g} s:\n{_trees(training)}"
        end_time = time.monotonic()
        if outcome.began is None:  # the machine is less busy than before
            self._life[kill.ranks] = min(self._life[kill.ranks], struck - start)
        while not outcome.fault and training.alive():
            if time.monotonic() > end_time + LEFT_SECONDS:
                outcome.fault = f"still running {LEFT_SECONDS:g} s after the launcher:\n{_trees(training)}"
            time.sleep(0.05)
        output = training.log.read_text()
        if outcome.fault:
            outcome.fault += f"\n{output}"
        return output

    def _start(self, name: str, ranks: int) -> TrainingRun:
        store = self._folder / name / "store"
        store.mkdir(parents=True, exist_ok=True)
        return TrainingRun(self._config, self._latents, store, until=STEPS, ranks=ranks)

    def _compare(self, name: str, outcome: Outcome) -> None:
        """Complete the chain and compare its checkpoints, including those after stop signals."""
        ranks = outcome.kill.ranks
        del self._chain[ranks]
        try:
            found, whole = self._train_without_kills(name, ranks), self._whole[ranks]
        except AssertionError as error:
            outcome.fault = f"the start after it: {error}"
            return
        if different := [file for file in sorted(whole) if whole[file] != found.get(file)]:
            outcome.fault = f"{len(different)} files differ from an undisturbed run, such as {different[0]}"

    def _train_without_kills(self, name: str, ranks: int) -> dict[str, str]:
        """Train to the end without kills; return the hash of every file of every checkpoint."""
        start = time.monotonic()
        with self._start(name, ranks) as training:
            status, output = training.end(most_seconds=END_SECONDS)
            assert status == 0, f"status {status}:\n{output}"
        self._life.setdefault(ranks, time.monotonic() - start)
        (folder,) = training.store.glob("small-*")
        store = CheckpointStore(folder)
        found = {
            f"{step}/{entry['path']}": entry["sha256"] for step in store.steps() for entry in store.open(step).files
        }
        litter = [str(path) for place in (folder, training.store.parent) for path in place.glob(".*")]
        assert not litter, f"left behind: {litter}"
        return found


def _trees(training: TrainingRun) -> str:
    shown = [str(pid) for pid in training.alive()]
    command = ["ps", "-o", "pid,ppid,stat,wchan:20,etimes,args", "-p", ",".join(shown)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
