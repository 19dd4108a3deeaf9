"""Ends of logs and metrics, read without the rest of the file."""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from dithc.core.integrity import parse_json, require_regular_file

TAIL_BYTES = 1 << 16
METRICS = "metrics/metrics.jsonl"  # in the store folder of a run
SETTLED_ROWS = 50
# Further ranks report that they have the same error, without its text.
ERROR = re.compile(r"(r\d+ \| )?\d\d:\d\d:\d\d [^:]+: error: (?!rank \S+: the same error$)")
BAR = re.compile(r"(\d+)/(\d+) (\S+) \(\d+ %\), (\S+ \S+), \S+ elapsed, (\S+) remaining(.*)$")
LAST_LINES = 8
MAX_LINES = 16


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training run: last step, its loss (None if dropped) and time (seconds since 1970), median rates."""

    step: int
    loss: float | None
    images_per_second: float | None
    seconds_per_step: float
    time: float


def tail(path: Path) -> list[str]:
    """Return the last complete lines of a file; empty if unreadable."""
    try:
        with require_regular_file(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > TAIL_BYTES else lines


def training_at(store: Path) -> TrainingProgress | None:
    """Return the progress of a run from the end of the metrics in its store folder; None before the first step."""
    rows: list[dict[str, Any]] = []
    for line in tail(store / METRICS):
        try:
            row = parse_json(line)
            rows.append({"step": int(row["step"]), "time": float(row["time"]), **row})
        except (ValueError, KeyError, TypeError):  # incomplete after a kill or during a write
            continue
    if not rows:
        return None
    settled = rows[-SETTLED_ROWS:]
    rates = [row["images_per_second"] for row in settled if row.get("images_per_second")]
    seconds = [row["step_seconds"] for row in settled if row.get("step_seconds")]
    return TrainingProgress(
        step=rows[-1]["step"],
        loss=rows[-1].get("loss"),
        images_per_second=median(rates) if rates else None,
        seconds_per_step=median(seconds) if seconds else 0.0,
        time=rows[-1]["time"],
    )


def bar_of(lines: list[str]) -> tuple[str, float | None] | None:
    """Return the last progress line of a log (`12/400 step, 3 step/s, 0:42 left, loss 0.1`) and its remaining seconds."""
    for line in reversed(lines):
        if match := BAR.search(line):
            count, total, unit, rate, remaining, notes = match.groups()
            return f"{count}/{total} {unit}, {rate}, {remaining} left{notes}", _seconds(remaining)
    return None


def error_of(lines: list[str]) -> list[str]:
    """Return the last error in a log (a four-line dithc error, or the end of a traceback); empty without one or after Ctrl-C."""
    if lines and lines[-1].startswith("KeyboardInterrupt"):
        return []
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    if errors:
        first, *details = lines[errors[-1] :]
        return [first, *takewhile(lambda line: line.startswith("  "), details)][:MAX_LINES]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return lines[-LAST_LINES:]
    return []


def _seconds(text: str) -> float | None:
    try:
        parts = [int(part) for part in text.split(":")]
    except ValueError:
        return None
    return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))
