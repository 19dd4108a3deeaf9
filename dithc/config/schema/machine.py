"""Settings of the machine in a profile: launch of ranks and distribution of their work."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from dithc.config.schema.base import Place, Positive, Settings
from dithc.config.schema.training import CheckpointMode, GradientMode, MemoryConfig, RunConfig, Sharding, StrategyName
from dithc.core.logging import user_error

Degree = Literal["auto"] | Positive


class SamplingParallelismConfig(Settings):
    """Parallelism of a sampling run. It does not change the images. auto selects the fastest combination by rates
    measured at the start (`dithc sample --show-plan`)."""

    data_parallel_degree: Degree = "auto"
    """Ranks that divide the images of a shard (64). They communicate only after these images are finished."""
    cfg_parallel: Literal["auto"] | bool = "auto"
    """Compute the two branches of guidance on two ranks, or two sets of ranks."""
    window_degree: Degree = "auto"
    """Ranks that divide the windows of a scene in each step. Bit-identical to one rank."""

    @property
    def given(self) -> dict[str, int]:
        """Degrees other than auto, by the names of `dithc.engine.cost.ParallelDegrees`."""
        degrees = {
            "data": self.data_parallel_degree,
            "cfg": self.cfg_parallel if self.cfg_parallel == "auto" else 1 + self.cfg_parallel,
            "windows": self.window_degree,
        }
        return {name: degree for name, degree in degrees.items() if degree != "auto"}


class SlowRanksConfig(Settings):
    """Detection of slow ranks during training with several ranks. Every ten steps, all ranks compare the time that each
    step takes without waiting for other ranks."""

    above: float = Field(default=1.10, gt=1.0, le=10.0)
    """Time of a rank, relative to the median of the other ranks, above which it is slow."""
    action: Literal["warn", "exclude"] = "warn"
    """Action for a slow rank. warn: log it; exclude: save and stop, and continue in a job without its node (scheduler
    slurm)."""


class MachineConfig(Settings):
    """Launch of ranks. A profile sets this section, not an experiment. Results change only by rounding: with the number
    of ranks, and more with bf16 in `param_gather_dtype` (rounded weights) or `reduce_dtype` (rounded summands)."""

    launcher: Literal["none", "mpiexec", "srun"] = "none"
    """Launcher of the ranks of a training or sampling run; `none` for one rank."""
    nodes: Positive = 1
    """Nodes of a training run."""
    strategy: StrategyName | Literal["auto"] = "cftp"
    """Parallel strategy of a training run. cftp: one rank per die; its core clusters share every operation inside the
    process; dp: one rank per core cluster, each with a replica; dp+tp: one rank per core cluster; the ranks of a die
    share every layer (tensor parallelism); auto: this section's part of the plan of the largest run, and the micro-batches
    and recomputation of all planned runs (`dithc plan`)."""
    pipeline_stages: Positive = 1
    """Stages of a training run (pipeline parallelism). Each stage holds consecutive blocks of the network and their state,
    on an equal part of the ranks, in their order. Stages exchange activations and their gradients, so that slow networks
    between nodes transfer fewer gradients of weights or none. Requires `micro_batch_size` of the run, and strategy cftp or
    dp. A single rank ignores it."""
    ranks_per_node: Positive | None = None
    """Ranks per node. If unset, the number of dies (cftp) or core clusters (dp, dp+tp) of the starting machine."""
    cpus_per_rank: Positive | None = None
    """Cores per rank. If unset, the cores of the workflow divided by the ranks of a node."""
    gradient_sync: GradientMode = "overlapped"
    """Gradient reduction over ranks. overlapped: dithc's, during the backward pass; ddp: PyTorch's."""
    sharding: Sharding = "none"
    """Sharding of the optimizer state over ranks with a replica of the weights. none: each rank keeps all of it; zero1:
    each rank keeps moments and averages of its share of the weights (strategies cftp and dp, gradients overlapped);
    node: as zero1, with shares for the ranks of each node, so that weights do not travel between nodes; zero2: as
    zero1, and summed gradients of its share only. Each micro-batch is then exchanged."""
    collectives: Literal["hierarchical", "iallreduce", "blocking"] = "hierarchical"
    """Implementation of sums over ranks. hierarchical: shared memory within a node and MPI between nodes; iallreduce:
    MPI's nonblocking all-reduce, posted and polled; blocking: MPI's blocking all-reduce."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the numbers that hierarchical sums transfer between ranks. The sums are computed in fp32."""
    param_gather_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the weights that `sharding` transfers. With bf16, all ranks compute with rounded weights; each
    rank keeps, updates and saves the exact weights of its share."""
    checkpoint_mode: CheckpointMode = "async"
    """async: training continues while checkpoints are written from a copy of the state; blocking: training waits."""
    hours_between_failures: float | None = Field(default=None, gt=0.0, le=10.0**6)
    """Mean time between failures of a job in hours. Training then also saves at the interval with the least expected loss of
    time, sqrt(2 x cost of a checkpoint x this time) (Young 1974), from measured costs. `null`: only at `checkpoint_every`."""
    allow_checkpoint_rollback: bool = False
    """If several of the newest checkpoints are damaged, continue from the newest intact one, or restart."""
    exchange_folder: Place | None = None
    """Folder through which the workers of `runs.*.local_updates` exchange updates, visible to all of them. `null`: `exchange`
    in the folder `store`."""
    memory: MemoryConfig = MemoryConfig()
    """Use of memory tiers by a rank."""
    sampling: SamplingParallelismConfig = SamplingParallelismConfig()
    """Parallelism of a sampling run."""
    batch_shares: Literal["equal", "measured"] = "equal"
    """Images of the global batch per rank. measured: in proportion to the speeds of the ranks in the first steps, for
    nodes of different speed. The mean gradient stays exact, but is rounded differently."""
    slow: SlowRanksConfig = SlowRanksConfig()
    """Detection of slow ranks."""
    stop_before_walltime: bool = False
    """Jobs end at their `runtime`. Training and sampling then save and stop in time, for the next job."""
    inputs_visible_on: Literal["here", "nodes"] = "here"
    """Location of the user's files. here: visible to the machine that starts the workflow, which checks them before the
    first job; nodes: possibly visible to nodes only, so that the first job detects a missing file."""
    scheduler: Literal["none", "slurm", "generic"] = "none"
    """Scheduler of the jobs. slurm: a job that stops before its walltime requeues itself; generic: the scripts of this
    profile resubmit it; none: jobs run on this machine."""
    srun_mpi: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    """Process management interface of srun: hydra, MPICH's launcher, which srun starts on the nodes; or a name in the
    output of `srun --mpi=list`. auto: hydra with MPICH, pmix otherwise."""
    cpus_per_node: Positive | None = None
    """Cores per node that a job may request; without a scheduler, the cores of this machine."""
    memory_per_node_mb: Positive | None = None
    """Memory in MB per node that a job may request; no limit if unset."""
    max_walltime_minutes: Positive | None = None
    """Longest walltime in minutes that a job may request; no limit if unset."""
    prologue: Place | None = None
    """File of shell commands, such as `module load`, to run before the command of every rule. A failure ends the
    job."""
    gflops_per_core: float = Field(default=10.0, ge=1e-6, le=10.0**6)
    """Training speed of a core in GFLOP/s, for estimates of walltimes. A low value avoids jobs that end early."""

    def _faults(self) -> Iterator[str]:
        if self.scheduler != "none" and (self.cpus_per_node is None or self.cpus_per_rank is None):
            yield (
                f"machine.scheduler `{self.scheduler}` requires machine.cpus_per_node and machine.cpus_per_rank, because the "
                "request of a job must not depend on the machine that reads it; `dithc doctor --write-profile` measures both"
            )
        if self.sharding != "none" and (self.gradient_sync == "ddp" or self.strategy == "dp+tp"):
            got = "gradient_sync ddp" if self.gradient_sync == "ddp" else "strategy dp+tp"
            yield f"machine.sharding {self.sharding} requires strategy cftp or dp and gradient_sync overlapped, not {got}"
        if self.pipeline_stages > 1:
            yield from self._stage_faults()
        cpus = (self.launched_per_node or 1) * (self.cpus_per_rank or 1)
        if self.cpus_per_node is not None and cpus > self.cpus_per_node:
            yield (
                f"machine.ranks_per_node {self.launched_per_node} x cpus_per_rank {self.cpus_per_rank} is more than "
                f"machine.cpus_per_node {self.cpus_per_node}"
            )

    def _stage_faults(self) -> Iterator[str]:
        unsupported = {"dp+tp", "auto", "ddp", "node", "measured"}
        names = ("strategy", "gradient_sync", "sharding", "batch_shares")
        found = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) in unsupported]
        memory = self.memory
        if memory.automem == "on" or memory.fast_memory_gib or memory.spill_folder or memory.allow_recompute:
            found.append("memory with several tiers")
        if found:
            yield f"machine.pipeline_stages {self.pipeline_stages} does not support machine.{', '.join(found)}"
        if self.ranks is not None and self.ranks > 1 and self.ranks % self.pipeline_stages:
            yield f"machine.pipeline_stages {self.pipeline_stages} cannot share {self.ranks} ranks equally"

    def stage_faults(self, name: str, run: RunConfig) -> Iterator[str]:
        """Yield why a run cannot be trained in stages, in micro-batches; a single rank ignores `pipeline_stages`."""
        stages, key = self.pipeline_stages, f"machine.pipeline_stages {self.pipeline_stages}"
        share, size = run.global_batch_size // max(1, (self.ranks or 1) // stages), run.micro_batch_size
        if size is None or 1 < share <= size:
            yield (
                f"{key} requires runs.{name}.micro_batch_size below {share}: stages compute different micro-batches at the "
                f"same time; try {max(1, share // (4 * stages))}"
            )
        if stages > run.model.shape[1]:
            yield f"{key} requires at least {stages} blocks, runs.{name} has {run.model.shape[1]}"
        if run.local_updates is not None:
            yield f"{key} does not support runs.{name}.local_updates"

    @property
    def training_memory(self) -> MemoryConfig:
        """Use of memory tiers by a training run: none with stages, because AutoMem records another order of passes."""
        return self.memory.updated(automem="off") if self.pipeline_stages > 1 else self.memory

    @property
    def rank_strategy(self) -> StrategyName:
        """Strategy of a started run; UserError for auto, which the workflow replaces by the plan."""
        if self.strategy == "auto":
            fix = "start it by the workflow, or pass --strategy"
            raise user_error("machine.strategy", got="auto", expected="a strategy of the plan", fix=fix)
        return self.strategy

    @property
    def ranks(self) -> int | None:
        """Ranks over all nodes; None if the number depends on the machine."""
        return None if self.launched_per_node is None else self.nodes * self.launched_per_node

    @property
    def launched_per_node(self) -> int | None:
        """Ranks per node, 1 without a launcher; None if the number depends on the machine."""
        return 1 if self.ranks_per_node is None and self.launcher == "none" else self.ranks_per_node

    def ranks_on(self, *, num_dies: int, num_clusters: int) -> int:
        """Return the default number of ranks on a node with these numbers of dies and core clusters."""
        return num_dies if self.strategy == "cftp" else num_clusters
