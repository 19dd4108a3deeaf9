"""Plan of an experiment: the cells of all targets on a node, with reasons for skipped cells."""

from collections.abc import Iterable
from dataclasses import replace

from dithc.config import ExperimentConfig
from dithc.core.logging import user_error
from dithc.workflow.reproduction.cost import MEMORY_SHARE, Cost, NodeModel
from dithc.workflow.reproduction.jobs import CellJob
from dithc.workflow.reproduction.scales import sizes_of
from dithc.workflow.reproduction.targets import TARGETS, TargetContext


def plan_cells(experiment: ExperimentConfig, node: NodeModel) -> list[CellJob]:
    """Return the cells of all targets, `paper.targets` first, for a measuring node."""
    settings = experiment.paper
    cost = Cost(node, settings.gflops_per_core)
    scope = TargetContext(experiment, sizes_of(experiment, node, cost), cost)
    names = [*settings.targets, *(name for name in TARGETS if name not in settings.targets)]
    jobs = [_check_memory(replace(job, target=name), cost) for name in names for job in TARGETS[name](scope)]
    return _within_budget(jobs, hours=settings.time_budget_hours) if settings.scale == "node" else jobs


def find_cell(jobs: Iterable[CellJob], target: str, name: str) -> CellJob:
    """Return a cell by its names; the UserError lists the cells of the target."""
    target_jobs = {job.name: job for job in jobs if job.target == target}
    if name not in target_jobs:
        raise user_error(
            f"there is no cell {name!r} of {target}",
            got=name,
            expected=f"one of {', '.join(target_jobs) or 'none: this target uses the runs of the experiment'}",
            fix="correct the name; `paper.scale` and the node determine the cells",
        )
    return target_jobs[name]


def _check_memory(job: CellJob, cost: Cost) -> CellJob:
    if cost.fits(job.memory_gib):
        return job
    total = cost.node.memory_gib
    limit = f"limit {MEMORY_SHARE * total:.1f} of {total:.1f} GiB of the node"
    return replace(job, skipped=f"predicted memory {job.memory_gib:.1f} GiB, {limit}")


def _within_budget(jobs: list[CellJob], *, hours: float) -> list[CellJob]:
    """Select cells within the hours; a long cell does not block later shorter ones."""
    remaining, selection = hours * 3600.0, list[CellJob]()
    for job in jobs:
        skipped = {earlier.name for earlier in selection if earlier.skipped and earlier.target == job.target}
        if job.skipped:
            pass
        elif before := next((name for name in job.after if name in skipped), None):
            job = replace(job, skipped=f"requires {before}, which is skipped")
        elif job.measures and job.seconds > remaining:
            reason = f"predicted {job.seconds:.0f} s, {remaining:.0f} s remain of paper.time_budget_hours {hours:g}"
            job = replace(job, skipped=f"{reason}: raise it, or list this target first in paper.targets")
        else:
            remaining -= job.seconds if job.measures else 0.0
        selection.append(job)
    return selection
