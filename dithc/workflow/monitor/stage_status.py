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
        message: description in one line.
        finished_at: completion time in seconds since 1970.
        seconds, eta_seconds: duration, including earlier training segments, and remaining time, if known.
        training: progress of a running training stage.
        error_lines: last lines of a failed stage.
    """

    stage: Stage
    state: State
    message: str = ""
    finished_at: float | None = None
    seconds: float | None = None
    eta_seconds: float | None = None
    training: TrainingProgress | None = None
    error_lines: tuple[str, ...] = ()
    log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DriverInfo:
    """The process that submits or runs an experiment's jobs: host, PID, start time in seconds since 1970."""

    host: str
    pid: int
    started_at: float


def span(seconds: float) -> str:
    """Format seconds as `m:ss`, `h:mm:ss`, or days and hours."""
    minutes, seconds_of_minute = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{seconds_of_minute:02d}" if hours else f"{minutes}:{seconds_of_minute:02d}"


def pace(seconds_per_step: float) -> str:
    """Format the speed as `3.1 steps/s` or `2.4 s per step`; empty if unknown."""
    if seconds_per_step <= 0:
        return ""
    return f"{1 / seconds_per_step:.3g} steps/s" if seconds_per_step < 1 else f"{seconds_per_step:.3g} s per step"


def clock(timestamp: float) -> str:
    """Format a time of today as `14:03`, of another day with its date."""
    time = datetime.fromtimestamp(timestamp)
    return time.strftime("%H:%M" if time.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
