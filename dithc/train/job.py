"""One job of a training run: request, lease, stop requests, exit status.

Contents: `TrainingJob` and its `Paths`; its status `DONE`; `hold_lease`; `StopRequests` (signals, walltime);
`StepTimer` (timeouts between ranks).
Invariants: all ranks exit with one status; signal handlers are restored.
Extending: a reason to stop is a method of `StopRequests`; the workflow's driver also interprets the statuses.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar, cast

from dithc.config import MachineConfig, training
from dithc.core.artifacts import CheckpointStore, Lease
from dithc.core.logging import UserError, user_error
from dithc.core.processes import STOP_SIGNALS, start_time
from dithc.engine.comm import Group
from dithc.engine.scheduler import deadline

T = TypeVar("T")
DONE = 0


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Inputs and outputs of a training job."""

    latents: Path  # manifest of the training latents
    init: Path | None = None  # manifest of the run with the initial weights of a fine-tuning
    store: Path  # folder of all stores; the run uses `<name>-<digest>` in it
    out: Path  # manifest to write


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One segment of a training run."""

    name: str
    run: training.RunConfig
    seed: int
    spec: dict[str, Any]  # semantic settings of digest and manifest
    paths: Paths
    until: int  # last optimizer step of this job
    # settings of the machine, which are not part of the digest
    machine: MachineConfig = field(default_factory=MachineConfig)
    walltime_minutes: float | None = None  # limit since the process started; the job saves and stops before

    def __post_init__(self) -> None:
        if not 1 <= self.until <= self.run.steps:
            raise user_error(
                f"last step of this job of run {self.name}",
                got=self.until,
                expected=f"1 to runs.{self.name}.steps = {self.run.steps}",
                fix="correct --until-step, or raise `steps` in the configuration",
            )
        if (self.paths.init is not None) != (self.run.init_from_run is not None):
            raise user_error(
                f"initial weights of run {self.name}",
                got=f"--init-from {self.paths.init}",
                expected=f"the manifest of run {self.run.init_from_run}"
                if self.run.init_from_run
                else "no --init-from: the run has no `init_from_run`",
                fix="pass the manifest of the run that the configuration names, or correct the configuration",
            )


def run_once(group: Group, function: Callable[[], T]) -> T:
    """Return the result of a function that only rank 0 calls; its UserError is raised on every rank. Collective."""
    result: Any = None
    if group.rank == 0:
        try:
            result = function()
        except UserError as error:
            result = error
    result = group.broadcast_object(result)
    if isinstance(result, UserError):
        raise result
    return cast("T", result)


def hold_lease(store: CheckpointStore, group: Group, stack: ExitStack) -> Lease | None:
    """Acquire the lease on rank 0 (None elsewhere); Lease.Held on all ranks if another trainer holds it."""
    leases: list[Lease] = []
    run_once(group, lambda: leases.append(stack.enter_context(Lease(store.folder))))
    return leases[0] if leases else None


RECENT_STEPS = 20
# Time after the last save: leaving the group, exit of the interpreter and the launcher, bookkeeping of the workflow
# engine.
EXIT_SECONDS = 10.0
# A rank counts as lost after this multiple of the longest step or save, and at least after this number of seconds.
TIMEOUT_FACTOR, MIN_TIMEOUT, MIN_DISK_TIMEOUT = 5, 60.0, 600.0


def seconds_since_process_start() -> float:
    """Return the age of this process, which the batch system also counts; 0 if unavailable."""
    try:
        seconds_since_boot = float(Path("/proc/uptime").read_text().split()[0])
        return seconds_since_boot - int(start_time(os.getpid()) or "") / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class StopRequests:
    """Handler of stop requests during a `with` block; restores the earlier signal handlers after it.

    A second SIGINT interrupts immediately. Without `walltime_minutes` the deadline of `dithc launch` applies, if any.
    """

    def __init__(self, *, walltime_minutes: float | None = None) -> None:
        self._signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        remaining = deadline.seconds_left()
        if walltime_minutes is not None:
            remaining = 60 * walltime_minutes - seconds_since_process_start()
        self._deadline = None if remaining is None else time.monotonic() + remaining

    def reason(self, *, grace_seconds: float | None) -> str | None:
        """Return the reason to stop now, or None; `grace_seconds` is the time to save and exit, None for no deadline."""
        if self._signal is not None:
            return f"signal {self._signal.name}"
        if self._deadline is not None and grace_seconds is not None:
            seconds = self._deadline - time.monotonic()
            if seconds < grace_seconds:
                return (
                    f"{max(seconds, 0.0):.0f} s of the walltime left, {grace_seconds:.0f} s required to save and exit"
                )
        return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class StepTimer:
    """Measured durations of steps and checkpoints, and the resulting grace period before a deadline."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._slowest_save = self._longest_step = self._slowest_validation = 0.0
        self._stall: float | None = None
        self._write = 0.0

    def step(self, seconds: float) -> None:
        self._steps = [*self._steps[1 - RECENT_STEPS :], seconds]
        self._longest_step = max(self._longest_step, seconds)

    def save(self, seconds: float) -> None:
        """Record the duration of a checkpoint write (initially of a read)."""
        self._slowest_save = max(self._slowest_save, seconds)

    def stall(self, seconds: float, *, write_seconds: float) -> None:
        """Record how long training waited for a checkpoint, and how long its files were written in the background."""
        self._stall, self._write = seconds, write_seconds

    def save_interval(self, failure_seconds: float) -> float | None:
        """Return the seconds between checkpoints with the least expected loss (Young 1974); None before a save.

        A failure loses half an interval on average. A checkpoint costs the time for which training waits for it. The interval
        is at least twice the time to write the files.
        """
        if self._stall is None:
            return None
        return max(math.sqrt(2 * self._stall * failure_seconds), 2 * self._write)

    def validation(self, seconds: float) -> None:
        """Record the duration of a validation, which may follow any step."""
        self._slowest_validation = max(self._slowest_validation, seconds)

    @property
    def grace_seconds(self) -> float:
        """Twice the slowest recent step with validation and the slowest save, plus the exit."""
        step_seconds = max(self._steps, default=0.0) + self._slowest_validation
        return 2 * step_seconds + 2 * self._slowest_save + EXIT_SECONDS

    def timeout_seconds(self, *, saving: bool = False) -> float | None:
        """Return the time for which a rank may delay others (`saving`: by its disk); None before the first step."""
        if not self._steps:
            return None
        longest = max(self._longest_step, self._slowest_save) if saving else self._longest_step
        return max(TIMEOUT_FACTOR * longest, MIN_DISK_TIMEOUT if saving else MIN_TIMEOUT)
