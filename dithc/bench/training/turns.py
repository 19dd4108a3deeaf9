"""Training runs that work in turns, so that changes in the speed of the machine affect all of them equally."""

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.bench.child_process import run_child
from dithc.bench.timing import alternating
from dithc.bench.training.memory_limit import MemoryLimit
from dithc.bench.training.run import TrainingResult, TrainingVariant, read_result, training_argv
from dithc.core.logging import get_logger, progress
from dithc.core.processes import Turns

log = get_logger(__name__)
MAX_ROUNDS, TURN_SECONDS = 12, 0.5  # short steps are repeated within a turn
PAUSE_SECONDS = 0.02
TIME_OVER = "the time was over"


@dataclass(frozen=True, kw_only=True)
class TurnRun:
    """Measurements of one variant in sequence, of which one is timed in turns with other runs.

    Attributes:
        options: arguments of `dithc bench training`.
        settings: changes to the settings of each measurement.
        timed: index of the timed measurement. Later measurements run after the last turn.
        cycle: a turn consists of this number of steps, or of a multiple.
    """

    variant: TrainingVariant
    options: Sequence[str]
    settings: Sequence[Mapping[str, Any]]
    timed: int = 0
    cycle: int = 1


def run_in_turns(
    runs: Sequence[TurnRun], *, until: float, label: str, parent: Path | None = None
) -> list[TrainingResult]:
    """Start all runs at once, let them step in turns until a time of the monotonic clock, and return their results.

    A run that is not ready in time has the status `stopped`. `parent` contains the folder of the runs, which all their nodes
    can read; by default it is on this node.
    """
    with tempfile.TemporaryDirectory(prefix=".dithc-turns-", dir=parent) as folder, ExitStack() as stack:
        members = [_Member(run, Path(folder) / str(number), stack) for number, run in enumerate(runs)]
        for one in members:
            stack.callback(one.end)  # of all members, before any is waited for
        with progress(total=math.ceil(max(0.0, until - time.monotonic())), label=label, unit="s") as bar:
            start = time.monotonic()

            def take(members: Sequence[_Member], text: str) -> None:
                for one in members:
                    one.turn(until)
                    bar.update(int(time.monotonic() - start) - bar.done, now=f"{text}, {one.run.variant.name}")

            while any(one.is_starting for one in members) and time.monotonic() < until:
                time.sleep(PAUSE_SECONDS)
            take(members, "warm-up")
            for number, order in enumerate(alternating(members, MAX_ROUNDS), 1):
                take(order, f"round {number}")
                if time.monotonic() + sum(one.seconds for one in members) > until:
                    break
        return [one.result() for one in members]


class _Member:
    """Run with its process and its turns."""

    def __init__(self, run: TurnRun, folder: Path, stack: ExitStack) -> None:
        folder.mkdir()
        self.run, self.seconds, self._cycles = run, 0.0, 1
        self._out, self._log = folder / "run.json", folder / "output.txt"
        self._turns = Turns(folder / "turns")
        settings = [dict(one) for one in run.settings]
        settings[run.timed]["turns"] = str(folder / "turns")
        (folder / "settings.json").write_text(json.dumps(settings))
        options = [*run.options, "--settings", str(folder / "settings.json")]
        stream = stack.enter_context(self._log.open("w"))
        argv = training_argv(run.variant, options, out=self._out)
        self._child = stack.enter_context(run_child(argv, stdout=stream, stderr=stream))

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def is_starting(self) -> bool:
        return self.is_running and self._turns.finished is None

    def turn(self, until: float) -> None:
        """Allow a turn, first of the preparation, then of timed steps, and wait for its end, at most until a time."""
        finished = self._turns.finished
        if finished is None or not self.is_running or time.monotonic() > until:
            return
        allowed = finished + (self._cycles * self.run.cycle if finished else 1)
        start = time.monotonic()
        self._turns.allow(allowed)
        while self.is_running and (self._turns.finished or 0) < allowed and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        self.seconds = time.monotonic() - start
        if finished == 1:  # the first timed cycle
            self._cycles = max(1, int(TURN_SECONDS / self.seconds))

    def end(self) -> None:
        """Send SIGTERM to a running process."""
        if self.is_running:
            self._child.terminate()

    def result(self) -> TrainingResult:
        """End the run, and return its result."""
        if self.is_running and (self._turns.finished or 0) < 1 + self.run.cycle:
            self.end()
            self._child.wait()
            return TrainingResult(status="stopped", reason=TIME_OVER)
        self._turns.allow(0)
        self._child.wait()
        limit = MemoryLimit(None, ranks=self.run.variant.ranks)
        result = read_result(TrainingResult(), self._child.returncode, out=self._out, log_path=self._log, limit=limit)
        if result.status != "ok":
            log.warning("%s: %s: %s", self.run.variant.name, result.status, result.reason)
        return result
