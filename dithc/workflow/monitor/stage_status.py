"""State of a stage, and the format of times."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from dithc.workflow.monitor.log_tail import TrainingProgress
from dithc.workflow.stages import Stage

State = Literal["done", "running", "queued", "waiting", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class StageStatus:
    """State of one stage.

    Attributes:
        state: queued with a scheduler, waiting for a stage, cores or the driver, stopped without an active process.
        words: description in one line.
        when: completion time in seconds since 1970.
        seconds, seconds_left: duration, including earlier training segments, and remaining time, if known.
        training: progress of a running training stage.
        why: last lines of a failed stage.
    """

    stage: Stage
    state: State
    words: str = ""
    when: float | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    training: TrainingProgress | None = None
    why: tuple[str, ...] = ()
    log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DriverInfo:
    """The process that submits or runs an experiment's jobs: host, PID, start time in seconds since 1970."""

    host: str
    pid: int
    began: float


def span(seconds: float) -> str:
    """Format seconds as `m:ss`, `h:mm:ss`, or days and hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def pace(seconds_per_step: float) -> str:
    """Format the speed as `3.1 steps/s` or `2.4 s per step`; empty if unknown."""
    if seconds_per_step <= 0:
        return ""
    return f"{1 / seconds_per_step:.3g} steps/s" if seconds_per_step < 1 else f"{seconds_per_step:.3g} s per step"


def clock(when: float) -> str:
    """Format a time of today as `14:03`, of another day with its date."""
    time = datetime.fromtimestamp(when)
    return time.strftime("%H:%M" if time.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def joined(*words: str) -> str:
    return ", ".join(word for word in words if word)
