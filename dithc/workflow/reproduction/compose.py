"""Document of a target, from the results of its cells and of the runs of the experiment."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dithc.config import ExperimentConfig
from dithc.core.artifacts import difference, digest
from dithc.core.integrity import load_checksummed, require_regular_file
from dithc.core.logging import user_error
from dithc.core.reproduction import ResultCell, ResultImage, TargetResult
from dithc.workflow.reproduction.curves import compare_platforms, read_curves
from dithc.workflow.reproduction.jobs import CellJob
from dithc.workflow.reproduction.results import CellResults, read_result, without_value
from dithc.workflow.reproduction.training_results import labels, read_samples, read_scores

HEADINGS = {
    "table1": ("Table 1", "FID after fine-tuning"),
    "table2": ("Table 2", "One node: seconds per iteration and peak memory by strategy"),
    "table3": ("Table 3", "One node: seconds per iteration by library of matrix products"),
    "table4": ("Table 4", "Speedup of matrix products by module"),
    "fig7": ("Figure 7", "Loss from scratch on several platforms"),
    "fig8": ("Figure 8", "Samples of fine-tuned models"),
    "fig9": ("Figure 9", "Gain of each part, stage by stage"),
    "fig10": ("Figure 10", "Weak scaling"),
    "fig11": ("Figure 11", "Strong scaling"),
    "sec56": ("Section 5.6", "Sustained floating-point rate"),
}
COMPARED = ("kernels", "code", "packages", "variables")
SMALL = "Scale ci: small networks and few images on few cores. It tests the code path only."


def read_cell(path: Path) -> dict[str, Any]:
    """Return the result of a cell; UserError if the file is missing or altered."""
    try:
        return load_checksummed(require_regular_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise user_error(
            f"the cell {path} cannot be read",
            got=f"{type(error).__name__}: {error}",
            expected="a JSON document of `dithc reproduce TARGET --cell NAME`",
            fix="remove it and rerun the command",
        ) from error


def build_target(
    experiment: ExperimentConfig,
    jobs: Sequence[CellJob],
    target: str,
    *,
    cells: Path,
    page: Path,
    command: str = "",
    scores: Iterable[Path] = (),
    pictures: Iterable[Path] = (),
    versions: Mapping[str, str] | None = None,
) -> TargetResult:
    """Return the document of a target from the folder of its cells; UserError if a cell is missing or altered.

    Files of the document are relative to the folder `page`. `command` repeats the target. `scores` are manifests for
    table 1, `pictures` sample images for figure 8.
    """
    target_jobs = [job for job in jobs if job.target == target]
    results, machine, package_versions = CellResults(), dict[str, Any](), dict(versions or {})
    curves = dict[str, tuple[CellJob, Mapping[str, Any], str]]()
    environments = dict[str, dict[str, Any]]()
    for job in target_jobs:
        if job.skipped:
            results.cells += without_value(job, "skipped", job.skipped)
            continue
        path = cells / f"{job.name}.json"
        content = read_cell(path)
        result, file = content["result"], Path(os.path.relpath(path, page)).as_posix()
        if result is None:
            results.cells += without_value(job, "skipped", content["reason"])
            continue
        if target == "fig7":
            results.add(read_curves(job, result, file))
            curves[job.name] = (job, result, file)
        else:
            results.add(read_result(job, result, file))
        if content.get("environment"):
            environments[job.name] = {topic: content["environment"].get(topic) for topic in COMPARED}
        if not machine and job.measures:
            machine = machine_of(result.get("machine"))
            package_versions |= {name: str(value) for name, value in result.get("versions", {}).items()}
    results.cells += compare_platforms(curves)
    results.notes += _environment_notes(environments)
    images: tuple[ResultImage, ...] = ()
    if target == "table1":
        results.cells += read_scores(experiment, scores, page=page)
        results.notes += labels(results.cells)
        results.notes.append("The published scores are shown only for equal extractor, number of images and setting.")
    if target == "fig8":
        images = tuple(read_samples(pictures, page=page))
        if not images:
            reason = "this experiment has no evaluations"
            results.cells.append(
                ResultCell(id="fig8", row="all", column="all", quantity="", status="skipped", reason=reason)
            )
    heading, title = HEADINGS[target]
    scale = experiment.paper.scale
    return TargetResult(
        target=target,
        title=title,
        paper=heading,
        scale=scale,
        machine=machine or machine_of(None),
        versions={"python": platform.python_version()} | package_versions,
        command=command,
        digest=digest([job.digest for job in target_jobs] + [cell.digest for cell in results.cells]),
        cells=tuple({cell.id: cell for cell in results.cells}.values()),
        series=tuple({(curve.label, curve.kind): curve for curve in results.series}.values()),
        images=images,
        notes=tuple(([SMALL] if scale == "ci" else []) + results.notes),
    )


def machine_of(machine: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a short description of a machine from the output of a benchmark; of this machine for None."""
    if machine is None:
        return {"name": platform.node(), "isa": platform.machine()}
    return {
        "name": machine["model_name"],
        "architecture": machine["architecture"],
        "cores": len(machine["cores"]),
        "dies": machine["num_dies"],
        "memory_gib": round(machine["memory_bytes"] / (1 << 30), 1),
        "described_by": machine.get("described_by", ""),
    }


def _environment_notes(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note for each cell that was measured in another environment than the first cell."""
    reference = next(iter(environments), "")
    diffs = {name: difference(environments[reference], environment) for name, environment in environments.items()}
    return [
        f"{name} was measured in another environment than {reference}: {diff}." for name, diff in diffs.items() if diff
    ]
