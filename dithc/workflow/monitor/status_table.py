"""Status lines by dataset, codec, run and evaluation: aligned, truncated to a width, optionally colored."""

from itertools import groupby
from typing import NamedTuple

from dithc.core.logging import escaping
from dithc.workflow.monitor.experiment_status import ExperimentStatus
from dithc.workflow.monitor.stage_status import StageStatus, State, clock, joined, span
from dithc.workflow.monitor.text_width import cut

# Precedence of the stage that represents an unfinished object.
FIRST: tuple[State, ...] = ("failed", "running", "queued", "stopped", "waiting")
ACTIVE: tuple[State, ...] = ("running", "queued", "failed")
COLOURS: dict[State, int] = {"done": 32, "running": 36, "queued": 33, "waiting": 90, "stopped": 35, "failed": 31}
LONGEST_NAME = 40
GAP = "  "


class StatusRow(NamedTuple):
    """One line of a status: kind and name of the object, state and description of its leading stage."""

    kind: str
    name: str
    state: State
    words: str


def format_status(
    status: ExperimentStatus,
    *,
    width: int | None = None,
    height: int | None = None,
    colour: bool = False,
    only_active: bool = False,
) -> list[str]:
    """Return the status of an experiment as lines.

    `width` and `height` are limits, except for the report's path. Waiting and finished rows are dropped first, or always if
    `only_active`.
    """
    objects = groupby(status.standings, key=lambda one: (one.stage.kind, one.stage.name))
    rows = [_row(kind, name, list(standings)) for (kind, name), standings in objects]
    rows = [row for row in rows if row.state in ACTIVE or not only_active]
    who = f"; {status.who}" if status.report is None and not only_active else ""
    others = (f"also in the queue: {job}" for job in status.others)
    end = [cut(line, width) for line in (*others, status.summary() + who)]
    end += [f"report: {status.report}"] if status.report is not None else []
    space = max(0, height - len(end)) if height is not None else len(rows)
    return _table(_most_telling(rows, space), width=width, colour=colour) + end


def _table(rows: list[StatusRow], *, width: int | None, colour: bool) -> list[str]:
    names = max((len(row.name) for row in rows), default=0)
    names = min(names, LONGEST_NAME if width is None else max(12, width // 4))
    kinds = max((len(row.kind) for row in rows), default=0)
    lines = []
    for row in rows:
        begin = f"{row.kind:<{kinds}}{GAP}{cut(escaping.escaped(row.name), names):<{names}}{GAP}"
        line = cut(escaping.escaped(f"{begin}{row.state:<7}{GAP}{row.words}".rstrip()), width)
        end = len(begin) + len(row.state)
        if colour and len(line) >= end:
            line = f"{begin}\x1b[{COLOURS[row.state]}m{row.state}\x1b[0m{line[end:]}"
        lines.append(escaping.Coded(line) if colour else line)
    return lines


def _most_telling(rows: list[StatusRow], space: int) -> list[StatusRow]:
    """Return as many rows as fit, in order; drops the last waiting rows first, then the first finished rows."""
    waiting = [number for number, row in enumerate(rows) if row.state == "waiting"][::-1]
    done = [number for number, row in enumerate(rows) if row.state == "done"]
    dropped = set([*waiting, *done][: max(0, len(rows) - space)])
    return [row for number, row in enumerate(rows) if number not in dropped][:space]


def _row(kind: str, name: str, standings: list[StageStatus]) -> StatusRow:
    if all(one.state == "done" for one in standings):
        when = clock(max(one.when for one in standings if one.when is not None))
        seconds = [one.seconds for one in standings if one.seconds is not None]
        # The duration of a segment of a run includes all earlier segments.
        took = (max(seconds) if kind == "run" else sum(seconds)) if seconds else None
        time = f"{when} in {span(max(1.0, took))}" if took is not None else when
        return StatusRow(kind, name, "done", joined(time, standings[-1].words))
    leading = next(one for state in FIRST for one in standings if one.state == state)
    words = leading.words
    if len({one.stage.rule for one in standings}) > 1:
        words = f"{leading.stage.rule.removesuffix('_generated')}: {words}" if words else leading.stage.rule
    return StatusRow(kind, name, leading.state, words)
