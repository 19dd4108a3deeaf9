"""Status lines by dataset, codec, run and evaluation: aligned, truncated to a width, optionally colored."""

from itertools import groupby
from typing import NamedTuple

from dithc.core.logging import escaping
from dithc.workflow.monitor.experiment_status import ExperimentStatus
from dithc.workflow.monitor.stage_status import StageStatus, State, clock, joined, span
from dithc.workflow.monitor.text_width import cut

# Precedence of the stage that represents an unfinished object.
PRECEDENCE: tuple[State, ...] = ("failed", "running", "queued", "stopped", "waiting")
ACTIVE: tuple[State, ...] = ("running", "queued", "failed")
COLORS: dict[State, int] = {"done": 32, "running": 36, "queued": 33, "waiting": 90, "stopped": 35, "failed": 31}
LONGEST_NAME = 40
GAP = "  "


class StatusRow(NamedTuple):
    """One line of a status: kind and name of the object, state and description of its leading stage."""

    kind: str
    name: str
    state: State
    message: str


def format_status(
    status: ExperimentStatus,
    *,
    width: int | None = None,
    height: int | None = None,
    color: bool = False,
    only_active: bool = False,
) -> list[str]:
    """Return the status of an experiment as lines.

    `width` and `height` are limits, except for the report's path. Waiting and finished rows are dropped first, or always if
    `only_active`.
    """
    objects = groupby(status.stages, key=lambda entry: (entry.stage.kind, entry.stage.name))
    rows = [_row(kind, name, list(statuses)) for (kind, name), statuses in objects]
    rows = [row for row in rows if row.state in ACTIVE or not only_active]
    driver = f"; {status.driver_text}" if status.report is None and not only_active else ""
    jobs = (f"also in the queue: {job}" for job in status.unmatched_jobs)
    end = [cut(line, width) for line in (*jobs, status.summary() + driver)]
    end += [f"report: {status.report}"] if status.report is not None else []
    space = max(0, height - len(end)) if height is not None else len(rows)
    return _table(_fitting_rows(rows, space), width=width, color=color) + end


def _table(rows: list[StatusRow], *, width: int | None, color: bool) -> list[str]:
    names = max((len(row.name) for row in rows), default=0)
    names = min(names, LONGEST_NAME if width is None else max(12, width // 4))
    kinds = max((len(row.kind) for row in rows), default=0)
    lines = []
    for row in rows:
        begin = f"{row.kind:<{kinds}}{GAP}{cut(escaping.escaped(row.name), names):<{names}}{GAP}"
        line = cut(escaping.escaped(f"{begin}{row.state:<7}{GAP}{row.message}".rstrip()), width)
        end = len(begin) + len(row.state)
        if color and len(line) >= end:
            line = f"{begin}\x1b[{COLORS[row.state]}m{row.state}\x1b[0m{line[end:]}"
        lines.append(escaping.Coded(line) if color else line)
    return lines


def _fitting_rows(rows: list[StatusRow], space: int) -> list[StatusRow]:
    """Return as many rows as fit, in order; drops the last waiting rows first, then the first finished rows."""
    waiting = [number for number, row in enumerate(rows) if row.state == "waiting"][::-1]
    finished_rows = [number for number, row in enumerate(rows) if row.state == "done"]
    dropped = set([*waiting, *finished_rows][: max(0, len(rows) - space)])
    return [row for number, row in enumerate(rows) if number not in dropped][:space]


def _row(kind: str, name: str, statuses: list[StageStatus]) -> StatusRow:
    if all(entry.state == "done" for entry in statuses):
        end_time = clock(max(entry.finished_at for entry in statuses if entry.finished_at is not None))
        seconds = [entry.seconds for entry in statuses if entry.seconds is not None]
        # The duration of a segment of a run includes all earlier segments.
        took = (max(seconds) if kind == "run" else sum(seconds)) if seconds else None
        time = f"{end_time} in {span(max(1.0, took))}" if took is not None else end_time
        return StatusRow(kind, name, "done", joined(time, statuses[-1].message))
    leading = next(entry for state in PRECEDENCE for entry in statuses if entry.state == state)
    message = leading.message
    if len({entry.stage.rule for entry in statuses}) > 1:
        message = f"{leading.stage.rule.removesuffix('_generated')}: {message}" if message else leading.stage.rule
    return StatusRow(kind, name, leading.state, message)
