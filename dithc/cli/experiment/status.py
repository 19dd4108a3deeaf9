"""`dithc status`: progress of experiments, from manifests, the store and the scheduler."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dithc.workflow import ExperimentMonitor, ExperimentStatus

SUMMARY = (
    "Shows finished, running and queued stages of experiments, and loss, images/s and remaining time of training runs. "
    "Writes no outputs."
)
EXAMPLE = "dithc status results/demo\ndithc status results/demo --watch"
WATCH_SECONDS = 5.0
MIN_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="*", metavar="results/NAME", help="default: all in results/")
    watch = f"refresh every SECONDS (default {WATCH_SECONDS:g}) until the report exists or Ctrl-C"
    parser.add_argument("--watch", type=float, nargs="?", const=WATCH_SECONDS, metavar="SECONDS", help=watch)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the status to this file")


def run(args: argparse.Namespace) -> int:
    """Print the status. Return 1 if a stage has failed."""
    from dithc.cli.experiment.live_display import LiveDisplay
    from dithc.core.logging import user_error
    from dithc.workflow import ExperimentMonitor

    folders = args.folders or sorted(path.parent for path in Path("results").glob("*/config.json"))
    if not folders:
        raise user_error(
            "no experiment found",
            got="no folder results/NAME with a config.json here",
            expected="a started experiment, and the working folder in which it was started",
            fix="pass the folder: dithc status path/to/results/NAME",
        )
    monitors = [ExperimentMonitor(folder) for folder in folders]
    screen = LiveDisplay()
    if args.watch is None:
        statuses = [monitor.poll() for monitor in monitors]
        screen.write(*_lines(statuses, screen, is_whole=True))
        _write(args.json, statuses)
    else:
        statuses = _watch(monitors, screen, seconds=max(MIN_SECONDS, args.watch), json_path=args.json)
    return 1 if any(status.count("failed") for status in statuses) else 0


def _watch(
    monitors: "list[ExperimentMonitor]", screen: Any, *, seconds: float, json_path: Path | None
) -> "list[ExperimentStatus]":
    """Poll until every report exists or the user interrupts."""
    statuses: list[ExperimentStatus] = []
    previous: set[str] = set()
    try:
        while True:
            statuses = [monitor.poll() for monitor in monitors]
            _write(json_path, statuses)
            lines = _lines(statuses, screen)
            if screen.is_terminal:
                screen.show(lines)
            elif new := [line for line in lines if line not in previous]:
                screen.write(*new)
            previous = set(lines)
            if all(status.report is not None for status in statuses):
                return statuses
            time.sleep(seconds)
    except KeyboardInterrupt:
        return statuses


def _lines(statuses: "list[ExperimentStatus]", screen: Any, *, is_whole: bool = False) -> list[str]:
    """Return the lines of all experiments, separated by empty lines, with details of failures if there is space."""
    from dithc.workflow import format_status

    height = None if is_whole or screen.height is None else max(3, screen.height // len(statuses) - 1)
    lines: list[str] = []
    for status in statuses:
        lines += [""] if lines else []
        lines += format_status(status, width=screen.width, height=height, color=screen.is_terminal)
        if is_whole:
            lines += status.failures()
    return lines


def _write(path: Path | None, statuses: "list[ExperimentStatus]") -> None:
    from dithc.core.artifacts import outputs

    if path is not None:
        outputs.write(path, json.dumps([status.as_json() for status in statuses], indent=1) + "\n")
