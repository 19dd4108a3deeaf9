"""Metrics of a run, appended as JSON lines and as TensorBoard events in one folder."""

import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dithc.log.messages import logger
from dithc.sealed import plain, seal_line, unseal_lines

METRICS_FILE = "metrics.jsonl"
log = logger(__name__)


class MetricsWriter:
    """Writes named numbers of a step to `metrics.jsonl` and to TensorBoard event files in `folder`.

    JSON lines survive anything (a torn last line is skipped when read); TensorBoard is for people. A run that resumes
    from an earlier step writes those steps again: readers take the last line of a step, and TensorBoard shows what is written
    now in place of everything after step `after`. A number that is not finite, or none, is null.
    """

    def __init__(self, folder: Path, *, after: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where metrics are written

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._lines = path.open("a", buffering=1)
        if torn:
            self._lines.write("\n")  # a killed writer's half line must not swallow our first
        purge_step = None if after is None else after + 1
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def write(self, step: int, **values: float | None) -> None:
        """Appends the values of one step."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        row = {"step": step, "time": round(time.time(), 3), **dict.fromkeys(values), **known}
        self._lines.write(seal_line(row))
        for name, value in known.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes both outputs."""
        self._lines.close()
        self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run in step order, one entry per step (the last written), torn and altered lines skipped; null is NaN."""
    path = folder / METRICS_FILE
    if not path.exists():
        return []
    rows: dict[int, dict[str, float]] = {}
    written, altered = unseal_lines(plain(path).read_text(errors="replace"))
    if altered:
        log.warning(f"{path}: {len(altered)} lines are not what was written, and are passed over: {altered[:8]}")
    for row in written:
        try:
            rows[int(row["step"])] = {name: math.nan if value is None else float(value) for name, value in row.items()}
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return [rows[step] for step in sorted(rows)]
