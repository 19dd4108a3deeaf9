"""`dithc status`: how far experiments are, from manifests, the store and the scheduler."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dithc.workflow import Progress, Status

SUMMARY = "Says what of an experiment is done, runs, is queued and why; loss, images/s and time left of trainings. Reads only."
EXAMPLE = "dithc status results/demo\ndithc status results/demo --watch"
WATCH_SECONDS = 5.0
LEAST_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "folders",
        type=Path,
        nargs="*",
        metavar="results/NAME",
        help="outputs of an experiment (default: all in results/)",
    )
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"look again and again (every {WATCH_SECONDS:g} s), until the report is there or Ctrl-C",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it to this file")


def run(args: argparse.Namespace) -> int:
    """Prints the status; status 1 where a stage has failed."""
    from dithc.cli.experiment.screen import Screen
    from dithc.log import problem
    from dithc.workflow import Progress

    folders = args.folders or sorted(path.parent for path in Path("results").glob("*/config.json"))
    if not folders:
        raise problem(
            "there is no experiment to tell of",
            got="no folder results/NAME with a config.json here",
            expected="an experiment that was started, and the working folder it was started in",
            fix="name the folder: dithc status path/to/results/NAME",
        )
    looks = [Progress(folder) for folder in folders]
    screen = Screen()
    if args.watch is None:
        found = [look.look() for look in looks]
        screen.say(*_lines(found, screen, is_whole=True))
        _write(args.json, found)
    else:
        found = _watch(looks, screen, seconds=max(LEAST_SECONDS, args.watch), json_path=args.json)
    return 1 if any(status.count("failed") for status in found) else 0


def _watch(looks: "list[Progress]", screen: Any, *, seconds: float, json_path: Path | None) -> "list[Status]":
    """Looks until every report is there, or somebody has had enough."""
    found: list[Status] = []
    told: set[str] = set()
    try:
        while True:
            found = [look.look() for look in looks]
            _write(json_path, found)
            if screen.is_terminal:
                screen.show(_lines(found, screen))
            else:
                lines = _lines(found, screen)
                new = [line for line in lines if line not in told]
                told = set(lines)
                screen.say(*new) if new else None
            if all(status.report is not None for status in found):
                return found
            time.sleep(seconds)
    except KeyboardInterrupt:
        return found


def _lines(found: "list[Status]", screen: Any, *, is_whole: bool = False) -> list[str]:
    """Every experiment's lines, an empty one between them; what was printed of failures at the end where there is room."""
    from dithc.workflow import lines_of

    height = None if is_whole or screen.height is None else max(3, screen.height // len(found) - 1)
    lines: list[str] = []
    for status in found:
        lines += [""] if lines else []
        lines += lines_of(status, width=screen.width, height=height, colour=screen.is_terminal)
        if is_whole:
            lines += status.failures()
    return lines


def _write(path: Path | None, found: "list[Status]") -> None:
    from dithc.runs import outputs

    if path is not None:
        outputs.write(path, json.dumps([status.as_json() for status in found], indent=1) + "\n")
