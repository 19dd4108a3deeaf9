"""Metrics of a run, appended as JSON lines and as TensorBoard events in one folder."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Writes named numbers of a step to `metrics.jsonl` and to TensorBoard event files in `folder`.

    JSON lines survive anything (a torn last line is skipped when read); TensorBoard is for people. A run that resumes
    from an earlier step writes those steps again: readers take the last line of a step.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where metrics are written

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._lines = path.open("a", buffering=1)
        if torn:
            self._lines.write("\n")  # a killed writer's half line must not swallow our first
        self._board: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, **values: float) -> None:
        """Appends the values of one step."""
        self._lines.write(json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n")
        for name, value in values.items():
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
    """The metrics of a run in step order, one entry per step (the last written), torn lines skipped."""
    path = folder / METRICS_FILE
    if not path.exists():
        return []
    rows: dict[int, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [rows[step] for step in sorted(rows)]
