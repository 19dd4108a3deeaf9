"""Request of a training job, its exit statuses, and the lease of its store."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from dithc.config import MachineConfig, training
from dithc.core.artifacts import CheckpointStore, Lease
from dithc.core.logging import UserError, user_error
from dithc.core.processes import HELD as HELD
from dithc.core.processes import STOPPED as STOPPED
from dithc.engine.comm import Group

T = TypeVar("T")
DONE = 0


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Inputs and outputs of a training job."""

    latents: Path  # manifest of the training latents
    init: Path | None = None  # manifest of the run with the initial weights of a fine-tuning
    store: Path  # folder of all stores; the run uses `<name>-<digest>` in it
    out: Path  # manifest to write


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One segment of a training run."""

    name: str
    run: training.RunConfig
    seed: int
    spec: dict[str, Any]  # semantic settings of digest and manifest
    paths: Paths
    until: int  # last optimizer step of this job
    # settings of the machine, which are not part of the digest
    machine: MachineConfig = field(default_factory=MachineConfig)
    walltime_minutes: float | None = None  # limit since the process started; the job saves and stops before

    def __post_init__(self) -> None:
        if not 1 <= self.until <= self.run.steps:
            raise user_error(
                f"last step of this job of run {self.name}",
                got=self.until,
                expected=f"1 to runs.{self.name}.steps = {self.run.steps}",
                fix="correct --until-step, or raise `steps` in the configuration",
            )
        if (self.paths.init is not None) != (self.run.init_from_run is not None):
            raise user_error(
                f"initial weights of run {self.name}",
                got=f"--init-from {self.paths.init}",
                expected=f"the manifest of run {self.run.init_from_run}"
                if self.run.init_from_run
                else "no --init-from: the run has no `init_from_run`",
                fix="pass the manifest of the run that the configuration names, or correct the configuration",
            )


def run_once(group: Group, function: Callable[[], T]) -> T:
    """Return the result of a function that only rank 0 calls; its UserError is raised on every rank. Collective."""
    result: Any = None
    if group.rank == 0:
        try:
            result = function()
        except UserError as error:
            result = error
    result = group.broadcast_object(result)
    if isinstance(result, UserError):
        raise result
    return cast("T", result)


def hold_lease(store: CheckpointStore, group: Group, stack: ExitStack) -> Lease | None:
    """Acquire the lease on rank 0 (None elsewhere); Lease.Held on all ranks if another trainer holds it."""
    leases: list[Lease] = []
    run_once(group, lambda: leases.append(stack.enter_context(Lease(store.folder))))
    return leases[0] if leases else None
