"""Paths of cells and documents of the paper, and resources of their jobs, for the rule files."""

import math
import os
import shlex
from collections.abc import Iterable, Sequence
from functools import cached_property

from dithc.config import ExperimentConfig
from dithc.core.reproduction import TARGETS
from dithc.core.units import GIB
from dithc.workflow.reproduction.cost import NodeModel
from dithc.workflow.reproduction.jobs import CellJob
from dithc.workflow.reproduction.plan import find_cell, plan_cells

LONGER = 5  # requested walltime relative to the prediction


class PaperFiles:
    """Files of the targets of an experiment; `configurations` are the user files that define the experiment."""

    def __init__(self, experiment: ExperimentConfig, *, root: str, cores: int, configurations: Sequence[str]) -> None:
        self.experiment, self.root, self.configurations = experiment, f"{root}/paper", configurations
        self.node = resolve_node(experiment, cores=cores)

    @cached_property
    def jobs(self) -> list[CellJob]:
        return plan_cells(self.experiment, self.node)

    @property
    def names(self) -> str:
        return "|".join(TARGETS)

    def document(self, target: str) -> str:
        return f"{self.root}/{target}.json"

    @property
    def documents(self) -> list[str]:
        return [self.document(target) for target in self.experiment.paper.targets]

    def page(self, target: str) -> str:
        return f"{self.root}/{target}.html"

    def skipped(self, target: str) -> list[str]:
        return [f"{job.name}: {job.skipped}" for job in self.jobs if job.target == target and job.skipped]

    def cell(self, target: str, name: str) -> str:
        return f"{self.root}/cells/{target}/{name}.json"

    def cells(self, target: str) -> list[str]:
        """Return the files of the cells of a target that run."""
        return [self.cell(target, job.name) for job in self.jobs if job.target == target and not job.skipped]

    def job(self, target: str, name: str) -> CellJob:
        """Return a cell; UserError if it does not exist."""
        return find_cell(self.jobs, target, name)

    def before(self, target: str, name: str) -> list[str]:
        return [self.cell(target, earlier) for earlier in self.job(target, name).after]

    def threads(self, target: str, name: str) -> int:
        """Return the cores of the job of a cell: the complete node for measurements."""
        return self.node.cores if self.job(target, name).measures else 1

    def runtime(self, target: str, name: str) -> int:
        """Return the walltime in minutes of the job of a cell, at most the limit."""
        minutes = math.ceil(2 + LONGER * self.job(target, name).seconds / 60)
        return min(minutes, self.experiment.machine.max_walltime_minutes or minutes)

    def task_cpus(self, target: str, name: str) -> int:
        is_one = self.job(target, name).ranks == 1
        return self.threads(target, name) if is_one else self.experiment.machine.cpus_per_rank or 1

    @property
    def of_node(self) -> str:
        """Arguments of `dithc reproduce` that describe the node."""
        return f"--cores {self.node.cores} --memory-gib {self.node.memory_gib:g}"

    def again(self, target: str) -> str:
        return f"snakemake --profile profiles/local {target} --configfile {shlex.join(self.configurations)}"


def resolve_node(
    experiment: ExperimentConfig, *, cores: int | None = None, memory_gib: float | None = None
) -> NodeModel:
    """Return the node of a plan: as given, from the profile, or this machine."""
    machine = experiment.machine
    # Total memory, because free memory varies.
    memory_bytes = (machine.memory_per_node_mb or 0) * 1e6 or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return NodeModel(cores or machine.cpus_per_node or os.cpu_count() or 1, memory_gib or round(memory_bytes / GIB, 1))


def format_cells(jobs: Iterable[CellJob], target: str, node: NodeModel) -> str:
    """Return the cells of a target as lines for the user."""
    lines = [f"{target} on {node.cores} cores, {node.memory_gib:g} GiB:"]
    target_jobs = [job for job in jobs if job.target == target]
    for job in target_jobs:
        action = f"skipped: {job.skipped}" if job.skipped else job.command
        lines.append(f"{job.seconds:8.0f} s  {job.name:<24} {action}")
    run = [job.seconds for job in target_jobs if not job.skipped]
    return "\n".join([*lines, f"{sum(run):8.0f} s  {len(run)} of {len(target_jobs)} cells"])
