"""Curves of a run: loss and throughput by step, smoothed, with its interruptions."""

import math
from pathlib import Path

import numpy as np

from dithc.core.integrity import load_checksummed_lines, require_regular_file
from dithc.core.logging import get_logger, read_metrics
from dithc.report.records import Curve, Values

log = get_logger(__name__)


def read_curve(
    run: str, *, metrics: Path, store: Path | None, global_batch_size: int, segments: list[int]
) -> Curve | None:
    """Read the curve of a run from `metrics` (metrics.jsonl or its folder) and `store` (with events); None without steps."""
    rows = read_metrics(metrics if metrics.is_dir() else metrics.parent)
    rows = [row for row in rows if "loss" in row]
    if not rows:
        return None
    steps = np.array([row["step"] for row in rows], dtype=np.float64)
    return Curve(
        run=run,
        steps=steps,
        loss=np.array([row["loss"] for row in rows], dtype=np.float64),
        images_per_second=np.array([_throughput(row, global_batch_size) for row in rows], dtype=np.float64),
        val_loss=np.array([row.get("val_loss", math.nan) for row in rows], dtype=np.float64),
        lr=np.array([row.get("lr", math.nan) for row in rows], dtype=np.float64),
        segments=[step for step in segments if step < steps[-1]],
        resumes=[step for step in read_resumes(store) if step not in segments] if store else [],
    )


def _throughput(row: dict[str, float], global_batch_size: int) -> float:
    if "images_per_second" in row:
        return row["images_per_second"]
    seconds = row.get("step_seconds", math.nan)
    return global_batch_size / seconds if seconds else math.nan


def read_resumes(store: Path) -> list[int]:
    """Return the steps at which a run resumed, from the events of its store."""
    path = store / "events.jsonl"
    if not path.is_file():
        return []
    steps = set()
    events, altered = load_checksummed_lines(require_regular_file(path).read_text(errors="replace"))
    if altered:
        log.warning(f"{path}: ignoring {len(altered)} altered lines: {altered[:8]}")
    for event in events:
        if event.get("event") == "started" and event.get("step"):
            steps.add(int(event["step"]))
    return sorted(steps)


def smooth(values: Values, *, window: int | None = None) -> Values:
    """Return the running mean of values (n,) without NaN: narrower at the start, one-sided at the end.

    `window` is odd; by default it is 1/40 of the values, at least 5.
    """
    half = (window or max(5, len(values) // 40)) // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    place = np.arange(len(values))
    reach = np.minimum(half, place)
    low, high = place - reach, np.minimum(place + reach + 1, len(values))
    number = counts[high] - counts[low]
    return np.where(number > 0, (sums[high] - sums[low]) / np.maximum(number, 1), np.nan)
