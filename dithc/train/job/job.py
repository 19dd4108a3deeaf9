"""Request of a training job, and its exit statuses."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dithc.config import training
from dithc.log import problem

DONE = 0
STOPPED = 75  # stopped and saved: run again (EX_TEMPFAIL of sysexits.h)
HELD = 76  # another trainer holds the run


@dataclass(frozen=True, kw_only=True)
class Job:
    """One segment of a training run.

    Attributes:
        spec: semantic settings of digest and manifest.
        latents: manifest of the training latents.
        init: manifest of the run with the initial weights of a fine-tuning.
        store: folder of all stores; the run uses `<name>-<digest>` in it.
        until: last optimizer step of this job.
        out: manifest to write.
        strategy, gradients, sharding, checkpoints, memory: as in the configuration, not part of the digest.
        walltime_minutes: limit since the process started; the job saves and stops before.
        trace_step: optimizer step to trace on each rank; None for no trace.
        go_back: whether an old checkpoint, or a new start, is allowed if several newer checkpoints are damaged.
    """

    name: str
    run: training.Run
    seed: int
    spec: dict[str, Any]
    latents: Path
    init: Path | None
    store: Path
    until: int
    out: Path
    strategy: training.StrategyName = "cftp"
    gradients: training.GradientPath = "overlapped"
    sharding: training.Sharding = "none"
    checkpoints: training.CheckpointPath = "async"
    memory: training.Memory = field(default_factory=training.Memory)
    walltime_minutes: float | None = None
    trace_step: int | None = None
    go_back: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.until <= self.run.steps:
            raise problem(
                f"last step of this job of run {self.name}",
                got=self.until,
                expected=f"1 to runs.{self.name}.steps = {self.run.steps}",
                fix="correct --until, or raise `steps` in the configuration",
            )
        if (self.init is not None) != (self.run.init is not None):
            raise problem(
                f"initial weights of run {self.name}",
                got=f"--init {self.init}",
                expected=f"the manifest of run {self.run.init}"
                if self.run.init
                else "no --init: the run has no `init`",
                fix="pass the manifest of the run that the configuration names, or correct the configuration",
            )
