"""Final summary of an experiment: scores with conditions, times, warnings, outputs."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dithc.config import datasets
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.core.processes import STOPPED
from dithc.workflow.monitor.experiment_status import ExperimentMonitor, ExperimentStatus
from dithc.workflow.monitor.log_tail import LAST_LINES, tail
from dithc.workflow.monitor.stage_status import joined, span
from dithc.workflow.monitor.text_width import INDENT, cut, folded, shortened
from dithc.workflow.monitor.warnings import LONGEST, WarningCollector, WarningGroup

LONGEST_NAME = 32
MAX_SCORES, MAX_WARNINGS, MAX_STORES = 24, 8, 8
KILLED = (
    "if memory ran out (`dmesg` then names the process; a scheduler can also be the cause), give the stage more memory, "
    "or reduce its batch"
)


class RunSummary:
    """Final report of an experiment, in lines of at most `width` (None without a terminal), except paths."""

    def __init__(self, progress: ExperimentMonitor, status: ExperimentStatus, *, width: int | None = None) -> None:
        self.progress, self.status, self.width = progress, status, width

    def summary(self, *, warned: WarningCollector, since: float, seconds: float) -> list[str]:
        """Return scores, times, products, warnings and completion.

        `warned` holds the driver's warnings; stage logs written since `since` (seconds since 1970) add theirs.
        """
        for entry in self.status.stages:
            log = self.progress.base / entry.stage.log
            if log.exists() and log.stat().st_mtime >= since:
                warned.read(log, stage=entry.stage.title)
        lines = [*_scores(self.progress, self.status), *_times(self.status), *_outputs(self.progress, self.status)]
        lines += [*_warnings(warned.kinds()), f"{self.status.summary()}; duration {span(seconds)}"]
        return folded(lines, width=self.width)

    def failure(self, ended: Mapping[str, str], *, already_reported: bool) -> list[str]:
        """Return failed stages with their last lines, logs and fixes.

        `ended` contains the ends of failed commands (`SnakemakeProcess.ended`), `already_reported` is true if the driver has
        reported them.
        """
        lines = [] if already_reported else self.status.failures()
        silent = [entry for entry in self.status.stages if entry.state == "stopped" and entry.stage.log in ended]
        for entry in silent:
            ending = ended[entry.stage.log]
            cause = f"ended without an error message ({ending})"
            cause = "stopped after a checkpoint, to be restarted" if ending == f"status {STOPPED}" else cause
            lines += [f"{entry.stage.title} {cause}; log: {entry.log or 'none'}"]
            lines += [f"  | {line}" for line in (tail(entry.log) if entry.log is not None else [])[-LAST_LINES:]]
            lines += [f"  fix: {KILLED}"] if ending == "SIGKILL" else []
        if not lines and not already_reported:
            return []
        waiting, num_done = self.status.count("waiting"), self.status.count("done")
        lines += [f"{waiting} stages were not started, {num_done} are done; start the same command again to continue"]
        return folded(lines, width=self.width)


def _scores(progress: ExperimentMonitor, status: ExperimentStatus) -> list[str]:
    """Return FID and KID of every evaluation, grouped by dataset, extractor and rendering."""
    graph, rows = progress.graph, []
    for entry in status.stages:
        if entry.stage.rule != "fid" or entry.state != "done":
            continue
        try:
            numbers = Manifest.read(progress.base / entry.stage.output, stage="fid").summary
        except UserError:  # it is being rebuilt
            continue
        dataset, extractor = graph.dataset_of(entry.stage.name), graph.extractor_name(entry.stage.name)
        limit = "" if numbers["comparable_to_published"] else ", comparable only with scores of this extractor"
        display = rendering(graph.experiment.datasets[dataset].rendering)
        head = f"scores of {dataset}: extractor {extractor} ({numbers['sha256'][:12]}{limit}), rendering {display}"
        rows.append((head, entry.stage.name, numbers))
    names = max((len(shortened(name, LONGEST_NAME)) for _, name, _ in rows), default=0)
    lines = []
    for head, group in groupby(rows[:MAX_SCORES], key=lambda row: row[0]):
        lines += [head, *(f"{INDENT}{shortened(name, LONGEST_NAME):<{names}}  {_score(it)}" for _, name, it in group)]
    return lines + ([f"{INDENT}and {len(rows) - MAX_SCORES} more"] if len(rows) > MAX_SCORES else [])


def rendering(display: datasets.RenderingConfig) -> str:
    """Format the conversion of tiles to 8-bit images for the scores: `B04 B03 B02, 0 to 0.3`."""
    low, high = (
        "/".join(f"{value:g}" for value in end) if isinstance(end, tuple) else f"{end:g}"
        for end in (display.low, display.high)
    )
    return f"{' '.join(map(str, display.bands))}, {low} to {high}"


def _score(numbers: Any) -> str:
    floor = f"floor {numbers['floor']:.4g}" if numbers.get("floor") is not None else "no floor"
    kid = f"KID {numbers['kid']:.4g}{_interval(numbers.get('kid_interval'))}" if numbers.get("kid") is not None else ""
    fid = f"FID {numbers['fid']:.4g}"
    return joined(fid, floor, kid, f"n {numbers['n_generated']} generated, {numbers['n_real']} real")


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f" [{ends[0]:.4g}, {ends[1]:.4g}]"


def _times(status: ExperimentStatus) -> list[str]:
    seconds: dict[str, dict[str, float]] = {}
    for entry in status.stages:
        if entry.state == "done" and entry.seconds is not None:
            key = entry.stage.name if entry.stage.kind == "run" else entry.stage.key
            durations = seconds.setdefault(entry.stage.manifest, {})
            durations[key] = max(entry.seconds, durations.get(key, 0.0))
    sums = sorted(((sum(times.values()), name) for name, times in seconds.items()), key=lambda pair: -pair[0])
    total = sum(spent for spent, _ in sums)
    parts = ", ".join(f"{name} {span(spent)} ({spent / total:.0%})" for spent, name in sums if total)
    return [f"time of all finished stages, {span(total)} without startup: {parts}"] if total else []


def _outputs(progress: ExperimentMonitor, status: ExperimentStatus) -> list[str]:
    root, stages = Path(progress.graph.root), [entry.stage for entry in status.stages if entry.state == "done"]
    rules = {stage.rule for stage in stages}
    runs = list(dict.fromkeys(stage.name for stage in stages if stage.kind == "run"))
    stores = [str(_store(progress, run)) for run in runs[:MAX_STORES]]
    stores += [f"and {len(runs) - MAX_STORES} more"] if len(runs) > MAX_STORES else []
    lines = [f"checkpoints: {', '.join(stores)}"] if runs else []
    if "sample" in rules:
        lines += [f"samples: {root / 'samples'}/NAME/grid.png; as GeoTIFF: dithc export --help"]
    if "restore" in rules:
        lines += [f"restored scenes: {root / 'restorations'}/NAME/scene-*/mean.tif, deviation.tif, flags.tif"]
    if status.report is not None:
        lines += [f"figures: {root / 'figures'}, numbers: {root / 'report.json'}"]
    hint = f"`dithc status {root}` prints the progress of each stage, `dithc show {root / 'tiles'}/NAME` describes an output"
    return [*lines, f"logs: {root / 'logs'}; {hint}"] if stages else []


def _store(progress: ExperimentMonitor, run: str) -> Path | str:
    graph = progress.graph
    for step in reversed(graph.segments(run)):
        try:
            return str(
                Manifest.read(progress.base / graph.segment(run, step), stage="train").summary["checkpoint_folder"]
            )
        except (UserError, KeyError):
            continue
    return f"{graph.experiment.store}/{run}-*"


def _warnings(kinds: Sequence[WarningGroup]) -> list[str]:
    if not kinds:
        return ["no warnings"]
    count = sum(kind.count for kind in kinds)
    lines = [f"warnings: {count}, of {len(kinds)} kinds" if count > len(kinds) else f"warnings: {count}"]
    lines += [f"{INDENT}{_occurrences(kind)}{cut(kind.text, LONGEST)}" for kind in kinds[:MAX_WARNINGS]]
    excess = len(kinds) - MAX_WARNINGS
    return lines + ([f"{INDENT}and {excess} more kinds, in the logs"] if excess > 0 else [])


def _occurrences(kind: WarningGroup) -> str:
    if len(kind.stages) == 1:
        return f"{kind.stages[0]}: "
    return f"{kind.count} times, first in {kind.stages[0]}: " if kind.stages else ""
