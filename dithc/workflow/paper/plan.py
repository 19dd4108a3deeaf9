"""Plan of an experiment: the cells of all targets on a node, with reasons for skipped cells."""

from collections.abc import Iterable

from dithc.config import Experiment
from dithc.log import problem
from dithc.workflow.paper.cost import MEMORY_SHARE, Cost, Node
from dithc.workflow.paper.jobs import Job
from dithc.workflow.paper.sizes import sizes_of
from dithc.workflow.paper.targets import TARGETS, Scope, skipped


def plan(experiment: Experiment, node: Node) -> list[Job]:
    """Return the cells of all targets, `paper.targets` first, for a measuring node."""
    asked = experiment.paper
    cost = Cost(node, asked.gflops_per_core)
    scope = Scope(experiment, sizes_of(experiment, node, cost), cost)
    names = [*asked.targets, *(name for name in TARGETS if name not in asked.targets)]
    jobs = [job for name in names for job in TARGETS[name](scope)]
    jobs = [_fitting(job, cost) for job in jobs]
    return _within(jobs, hours=asked.hours) if asked.scale == "node" else jobs


def job_of(jobs: Iterable[Job], target: str, name: str) -> Job:
    """Return a cell by its names; the UserError lists the cells of the target."""
    own = {job.name: job for job in jobs if job.target == target}
    if name not in own:
        raise problem(
            f"there is no cell {name!r} of {target}",
            got=name,
            expected=f"one of {', '.join(own) or 'none: what it shows comes from trainings'}",
            fix="correct the name; `paper.scale` and the node decide which cells there are",
        )
    return own[name]


def _fitting(job: Job, cost: Cost) -> Job:
    if cost.fits(job.memory_gib):
        return job
    most = MEMORY_SHARE * cost.node.memory_gib
    return skipped(
        job,
        f"predicted to hold {job.memory_gib:.1f} GiB, and {most:.1f} of the node's {cost.node.memory_gib:.1f} may be",
    )


def _within(jobs: list[Job], *, hours: float) -> list[Job]:
    """Select cells within the hours; a long cell does not block later shorter ones."""
    left, found, gone = hours * 3600.0, list[Job](), set[tuple[str, str]]()
    for job in jobs:
        if job.skipped:
            gone.add((job.target, job.name))
        elif before := next((name for name in job.after if (job.target, name) in gone), None):
            job = skipped(job, f"{before} is skipped, and this comes after it")
            gone.add((job.target, job.name))
        elif job.measures and job.seconds > left:
            job = skipped(
                job,
                f"predicted to take {job.seconds:.0f} s, and {left:.0f} s are left of paper.hours {hours:g}: raise it, or put "
                "this target first in paper.targets",
            )
            gone.add((job.target, job.name))
        else:
            left -= job.seconds if job.measures else 0.0
        found.append(job)
    return found
