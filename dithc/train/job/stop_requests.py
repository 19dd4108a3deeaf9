"""Stop requests: signals, and the approaching end of the walltime."""

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dithc.engine.scheduler import deadline

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
RECENT_STEPS = 20
# Time after the last save: leaving the group, exit of the interpreter and the launcher, bookkeeping of the workflow
# engine.
EXIT_SECONDS = 10.0
# A rank counts as lost after this multiple of the longest step or save, and at least after this number of seconds.
TIMEOUT_FACTOR, MIN_TIMEOUT, MIN_DISK_TIMEOUT = 5, 60.0, 600.0


def seconds_since_process_start() -> float:
    """Return the age of this process, which the batch system also counts; 0 if unavailable."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
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
        self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class StepTimer:
    """Measured durations of steps and checkpoints, and the resulting grace period before a deadline."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._slowest_save = self._longest_step = self._slowest_validation = 0.0

    def step(self, seconds: float) -> None:
        self._steps = [*self._steps[1 - RECENT_STEPS :], seconds]
        self._longest_step = max(self._longest_step, seconds)

    def save(self, seconds: float) -> None:
        """Record the duration of a checkpoint write (initially of a read)."""
        self._slowest_save = max(self._slowest_save, seconds)

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
