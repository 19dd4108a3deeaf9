"""Curves of a run: loss and throughput by step, smoothed, with its interruptions."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dithc.core.integrity import load_document, require_regular_file
from dithc.core.logging import get_logger, read_json_lines, read_metrics
from dithc.report.records import Curve, Values

log = get_logger(__name__)
SLOW_FILE = "slow.json"  # in the store of a run with several ranks


def read_curve(
    run: str, *, metrics: Path, store: Path | None, global_batch_size: int, segments: list[int]
) -> Curve | None:
    """Read the curve of a run from `metrics` (metrics.jsonl or its folder) and `store` (with events); None without steps."""
    rows = read_metrics(metrics if metrics.is_dir() else metrics.parent)
    rows = [row for row in rows if "loss" in row]
    if not rows:
        return None
    columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in ("loss", "val_loss", "lr")}
    steps = np.array([row["step"] for row in rows])
    return Curve(
        run=run,
        steps=steps,
        **columns,
        images_per_second=np.array([_throughput(row, global_batch_size) for row in rows]),
        segments=[step for step in segments if step < steps[-1]],
        resumes=[step for step in read_resumes(store) if step not in segments] if store else [],
        ranks=_read_ranks(store) if store else {},
    )


def _read_ranks(store: Path) -> dict[str, Any]:
    path = store / SLOW_FILE
    if not path.exists():
        return {}
    try:
        content = dict(load_document(require_regular_file(path).read_text()))
        return {key: content[key] for key in ("nodes", "steps", "last_steps", "ratios", "findings")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning(f"the report has no times of ranks, because {path} is unusable: {error}")
        return {}


def _throughput(row: dict[str, float], global_batch_size: int) -> float:
    if "images_per_second" in row:
        return row["images_per_second"]
    seconds = row.get("step_seconds", math.nan)
    return global_batch_size / seconds if seconds else math.nan


def read_resumes(store: Path) -> list[int]:
    """Return the steps at which a run resumed, from the events of its store."""
    events = read_json_lines(store / "events.jsonl")
    return sorted({int(event["step"]) for event in events if event.get("event") == "started" and event.get("step")})


def smooth(values: Values, *, window: int | None = None) -> Values:
    """Return the running mean of values (n,) without NaN: narrower at the start, one-sided at the end.

    `window` is odd; by default it is 1/40 of the values, at least 5.
    """
    half = (window or max(5, len(values) // 40)) // 2
    mask = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(mask, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(mask)])
    indices = np.arange(len(values))
    radius = np.minimum(half, indices)
    low, high = indices - radius, np.minimum(indices + radius + 1, len(values))
    number = counts[high] - counts[low]
    return np.where(number > 0, (sums[high] - sums[low]) / np.maximum(number, 1), np.nan)
