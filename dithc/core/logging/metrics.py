"""Metrics of a run, appended as JSON lines and as TensorBoard events in one folder."""

import io
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from dithc.core.integrity import dump_checksummed_line, load_checksummed_lines, require_regular_file
from dithc.core.logging.messages import get_logger

METRICS_FILE = "metrics.jsonl"
log = get_logger(__name__)


class MetricsWriter:
    """Writer of named numbers per step: JSON lines and TensorBoard events in `folder`.

    Each step is in both files when `write` returns, so that a full disk is an `OSError` of the calling thread. Readers
    skip a torn last line. A run that resumes after step `after` writes later steps a second time: readers use the last
    line of a step, and TensorBoard discards the earlier events after that step. A value that is None or not finite is
    null. `claim` is called with both paths before the files are created.
    """

    def __init__(
        self, folder: Path, *, after: int | None = None, claim: Callable[[Sequence[Path]], None] | None = None
    ) -> None:
        # TensorBoard reads files in the order of their names.
        path = folder / METRICS_FILE
        events = folder / f"tensorboard/events.out.tfevents.{time.time_ns():019d}.{os.getpid()}"
        if claim is not None:
            claim([path, events])
        events.parent.mkdir(parents=True, exist_ok=True)
        is_incomplete = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._lines = path.open("ab", buffering=0)
        self._events = events.open("xb", buffering=0)
        if is_incomplete:
            _append(self._lines, b"\n")  # a line that a killed writer left incomplete must not join the next line
        self._add_event(file_version="brain.Event:2")
        if after is not None:
            self._add_event(step=after + 1, session_log={"status": "START"})

    def write(self, step: int, **values: float | None) -> None:
        """Append the values of one step; OSError if the disk is full or fails."""
        finite_values = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        row = {"step": step, "time": round(time.time(), 3), **dict.fromkeys(values), **finite_values}
        _append(self._lines, dump_checksummed_line(row).encode())
        scalars = [{"tag": name, "simple_value": value} for name, value in finite_values.items()]
        self._add_event(step=step, summary={"value": scalars})

    def _add_event(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
        _append(self._events, record.getvalue())

    def close(self) -> None:
        self._lines.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _append(file: io.FileIO, data: bytes) -> None:
    while data:  # a nearly full disk accepts a part; the next call then raises
        data = data[file.write(data) :]


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of lines with checksums, without torn and altered lines; empty if the file does not exist."""
    if not path.exists():
        return []
    rows, altered = load_checksummed_lines(require_regular_file(path).read_text(errors="replace"))
    if altered:
        log.warning(f"{path}: skipped {len(altered)} altered lines: {altered[:8]}")
    return rows


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read the metrics of a run in step order, one entry per step (the last written); null becomes NaN."""
    rows: dict[int, dict[str, float]] = {}
    for row in read_json_lines(folder / METRICS_FILE):
        try:
            rows[int(row["step"])] = {name: math.nan if value is None else float(value) for name, value in row.items()}
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return [rows[step] for step in sorted(rows)]
