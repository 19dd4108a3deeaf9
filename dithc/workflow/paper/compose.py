"""The document of a target, from the files of its cells and of the experiment's trainings."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dithc.config import Experiment
from dithc.log import problem
from dithc.papers import Cell, Document, Picture, published
from dithc.runs import digest
from dithc.sealed import plain, unseal
from dithc.sittings import difference
from dithc.workflow.paper.curves import judge, read_curves
from dithc.workflow.paper.jobs import Job
from dithc.workflow.paper.results import Read, read_result, without_value
from dithc.workflow.paper.trained import labels, read_samples, read_scores

HEADINGS = {
    "table1": ("Table 1", "FID after fine-tuning"),
    "table2": ("Table 2", "One node: seconds an iteration and peak memory by strategy"),
    "table3": ("Table 3", "One node: seconds an iteration by library of matrix products"),
    "table4": ("Table 4", "Speed-up of matrix products by module"),
    "fig7": ("Figure 7", "Loss from scratch on several platforms"),
    "fig8": ("Figure 8", "Samples of fine-tuned models"),
    "fig9": ("Figure 9", "What each part adds, step by step"),
    "fig10": ("Figure 10", "Weak scaling"),
    "fig11": ("Figure 11", "Strong scaling"),
    "sec56": ("Section 5.6", "Sustained floating-point rate"),
}
COMPARED = ("kernels", "code", "packages", "variables")
SMALL = (
    "Scale ci: small networks and a few images, on few cores; it proves the path, its numbers stand for nothing else."
)


def read_cell(path: Path) -> dict[str, Any]:
    """Return a cell's result; UserError if it is missing or altered."""
    try:
        return unseal(plain(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise problem(
            f"the cell {path} cannot be read",
            got=f"{type(error).__name__}: {error}",
            expected="a JSON document as `dithc paper TARGET --cell NAME` writes it",
            fix="remove it and start the same command again",
        ) from error


def compose(
    experiment: Experiment,
    jobs: Sequence[Job],
    target: str,
    *,
    cells: Path,
    page: Path,
    command: str = "",
    scores: Iterable[Path] = (),
    pictures: Iterable[Path] = (),
    versions: Mapping[str, str] | None = None,
) -> Document:
    """Return the document of a target.

    Args:
        jobs: the plan of the cells.
        cells: folder of the target's cells.
        page: folder of the page; the document's files are relative to it.
        command: the command that repeats the target.
        scores: manifests of `dithc fid`, for table 1.
        pictures: sample images, for figure 8.

    Raises:
        UserError: a cell is missing or altered.
    """
    own = [job for job in jobs if job.target == target]
    read, machine, told_versions = Read(), dict[str, Any](), dict(versions or {})
    curves = dict[str, tuple[Job, Mapping[str, Any], str]]()
    environments = dict[str, dict[str, Any]]()
    for job in own:
        if job.skipped:
            read.cells += without_value(job, "skipped", job.skipped)
            continue
        path = cells / f"{job.name}.json"
        told = read_cell(path)
        file = _relative(path, page)
        if told["result"] is None:
            found = _failed(job, told)
        elif target == "fig7":
            found, curves[job.name] = read_curves(job, told["result"], file), (job, told["result"], file)
        else:
            found = read_result(job, told["result"], file)
        read.add(found)
        if told["result"] and told.get("environment"):
            environments[job.name] = {topic: told["environment"].get(topic) for topic in COMPARED}
        if told["result"] and not machine and job.measures:
            machine = machine_of(told["result"].get("machine"))
            told_versions |= {name: str(value) for name, value in told["result"].get("versions", {}).items()}
    read.add(judge(curves))
    read.notes += _mixed(environments)
    images: tuple[Picture, ...] = ()
    if target == "table1":
        read.cells += read_scores(experiment, scores, page=page)
        read.notes += labels(read.cells)
        read.notes += [
            "Scores stand beside the paper's only where extractor, number of images and setting are the paper's."
        ]
    if target == "fig8":
        images = tuple(read_samples(pictures, page=page))
        if not images:
            why = "no data sets are trained on and judged in this experiment"
            read.cells.append(Cell(id="fig8", row="all", column="all", quantity="", status="skipped", reason=why))
    read.findings += _compared(target, read.cells)
    heading, title = HEADINGS[target]
    scale = experiment.paper.scale
    return Document(
        target=target,
        title=title,
        paper=heading,
        scale=scale,
        machine=machine or machine_of(None),
        versions={"python": platform.python_version()} | told_versions,
        command=command,
        digest=digest([job.digest for job in own] + [cell.digest for cell in read.cells]),
        cells=tuple({cell.id: cell for cell in read.cells}.values()),
        series=tuple({(one.label, one.kind): one for one in read.series}.values()),
        images=images,
        findings=tuple(read.findings),
        notes=tuple(([SMALL] if scale == "ci" else []) + read.notes),
    )


def machine_of(told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a short description of a machine from a bench's output."""
    if told is None:
        return {"name": platform.node(), "isa": platform.machine()}
    return {
        "name": told["model_name"],
        "architecture": told["architecture"],
        "cores": len(told["cores"]),
        "dies": told["num_dies"],
        "memory_gib": round(told["memory_bytes"] / (1 << 30), 1),
        "described_by": told.get("described_by", ""),
    }


def _mixed(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note for each cell that was measured in another environment than the first cell."""
    first = next(iter(environments), "")
    found = {name: difference(environments[first], one) for name, one in environments.items()}
    return [f"{name} was measured in another environment than {first}: {why}." for name, why in found.items() if why]


def _failed(job: Job, told: Mapping[str, Any]) -> Read:
    return Read(without_value(job, "skipped", told["reason"]))


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page)).as_posix()


def _compared(target: str, cells: Sequence[Cell]) -> list[str]:
    """Table 2 in words: CFTP over each other strategy, ours and the paper's."""
    if target != "table2":
        return []
    values = {(cell.row, cell.column): cell.value for cell in cells if cell.value is not None}
    found = []
    for (row, column), value in values.items():
        if column != "CFTP s":
            continue
        model = row.partition(" ")[2]
        for other in ("DP s", "DP+TP s"):
            if theirs := values.get((row, other)):
                printed, ours = (published("table2", f"112 {model}", name) for name in (other, "CFTP s"))
                paper = f"the paper has {printed / ours:.2f}" if printed and ours else "the paper has no number"
                found.append(
                    f"{model}, batch {row.partition(' ')[0]}: CFTP is {theirs / value:.2f} x as fast as {other[:-2]}; "
                    f"{paper} at batch 112."
                )
    return found
