"""Status lines by data set, codec, run and evaluation: aligned, cut to a width, optionally colored."""

from dataclasses import dataclass
from itertools import groupby

from dithc.log import escaping
from dithc.workflow.watching.fitting import cut
from dithc.workflow.watching.progress import Status
from dithc.workflow.watching.standing import Standing, State, clock, joined, span

# What speaks for a thing of several stages, where not all are done.
FIRST: tuple[State, ...] = ("failed", "running", "queued", "stopped", "waiting")
ACTIVE: tuple[State, ...] = ("running", "queued", "failed")
COLOURS: dict[State, int] = {"done": 32, "running": 36, "queued": 33, "waiting": 90, "stopped": 35, "failed": 31}
LONGEST_NAME = 40
GAP = "  "


@dataclass(frozen=True)
class Row:
    """One line of a status: kind and name, state of the leading stage, stages done of total, description."""

    kind: str
    name: str
    state: State
    done: int
    total: int
    words: str


def rows_of(status: Status) -> list[Row]:
    """A line for each thing, in the order of the work."""
    things = groupby(status.standings, key=lambda one: (one.stage.kind, one.stage.name))
    return [_row(kind, name, list(standings)) for (kind, name), standings in things]


def table(rows: list[Row], *, width: int | None = None, colour: bool = False) -> list[str]:
    """Return aligned lines, cut to `width`, with states in color if requested."""
    names = max((len(row.name) for row in rows), default=0)
    names = min(names, LONGEST_NAME if width is None else max(12, width // 4))
    kinds = max((len(row.kind) for row in rows), default=0)
    lines = []
    for row in rows:
        begin = f"{row.kind:<{kinds}}{GAP}{cut(escaping.escaped(row.name), names):<{names}}{GAP}"
        line = cut(escaping.escaped(f"{begin}{row.state:<7}{GAP}{row.words}".rstrip()), width)
        lines.append(_coloured(line, row.state, at=len(begin)) if colour else line)
    return lines


def lines_of(
    status: Status,
    *,
    width: int | None = None,
    height: int | None = None,
    colour: bool = False,
    only_active: bool = False,
) -> list[str]:
    """Return the status of an experiment as lines.

    `width` and `height` are limits, but the report's path may be longer. Waiting and finished rows are dropped first, or always
    if `only_active`.
    """
    rows = [row for row in rows_of(status) if row.state in ACTIVE or not only_active]
    who = f"; {status.who}" if status.report is None and not only_active else ""
    end = [*(f"also in the queue: {words}" for words in status.others), status.summary() + who]
    end += [f"report: {status.report}"] if status.report is not None else []
    room = max(0, height - len(end)) if height is not None else len(rows)
    lines = table(_most_telling(rows, room), width=width, colour=colour)
    return lines + [cut(line, width) if not line.startswith("report: ") else line for line in end]


def _most_telling(rows: list[Row], room: int) -> list[Row]:
    """Return as many rows as fit, in order; drops the last waiting rows first, then the first finished rows."""
    waiting = [number for number, row in enumerate(rows) if row.state == "waiting"][::-1]
    done = [number for number, row in enumerate(rows) if row.state == "done"]
    left_out = set([*waiting, *done][: max(0, len(rows) - room)])
    return [row for number, row in enumerate(rows) if number not in left_out][:room]


def _row(kind: str, name: str, standings: list[Standing]) -> Row:
    done = [one for one in standings if one.state == "done"]
    if len(done) == len(standings):
        return Row(kind, name, "done", len(done), len(standings), _all_done(kind, done))
    speaks = next(one for state in FIRST for one in standings if one.state == state)
    words = speaks.words
    if len({one.stage.rule for one in standings}) > 1:
        words = f"{speaks.stage.rule.removesuffix('_generated')}: {words}" if words else speaks.stage.rule
    return Row(kind, name, speaks.state, len(done), len(standings), words)


def _all_done(kind: str, done: list[Standing]) -> str:
    when = clock(max(one.when for one in done if one.when is not None))
    seconds = [one.seconds for one in done if one.seconds is not None]
    # A training's time is that of all its segments so far.
    took = (max(seconds) if kind == "run" else sum(seconds)) if seconds else None
    return joined(f"{when} in {span(max(1.0, took))}" if took is not None else when, done[-1].words)


def _coloured(line: str, state: State, *, at: int) -> str:
    end = at + len(state)
    coded = f"{line[:at]}\x1b[{COLOURS[state]}m{line[at:end]}\x1b[0m{line[end:]}" if len(line) >= end else line
    return escaping.Coded(coded)
