"""How ranks are started, and how they share their work: what a profile says of the machine."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dithc.config.base import Place, Positive, Settings
from dithc.config.sharing import Sampling
from dithc.config.training import CheckpointPath, GradientPath, Memory, Sharding, StrategyName


class Machine(Settings):
    """How ranks are started; set by a profile, never by an experiment, and without effect on results."""

    launcher: Literal["none", "mpiexec", "srun"] = "none"
    """What starts the ranks of a training or sampling; `none` for one rank."""
    nodes: Positive = 1
    """Nodes of a training."""
    strategy: StrategyName = "cftp"
    """How ranks share a training. cftp: a rank a die, whose clusters share every operation inside the process; dp: a rank
    a cluster, with a replica of everything; dp+tp: a rank a cluster, those of a die share every layer (tensor parallelism)."""
    ranks_per_node: Positive | None = None
    """Ranks on a node; if not given, its dies (cftp) or its clusters (dp, dp+tp), counted where the ranks are started."""
    cpus_per_rank: Positive | None = None
    """Cores of a rank; the cores the workflow was given, shared by the ranks of a node, if not given."""
    gradients: GradientPath = "overlapped"
    """Who sums gradients over ranks: dithc's reducer while the backward pass runs, or PyTorch's DistributedDataParallel."""
    sharding: Sharding = "none"
    """What ranks with a replica of the weights keep of the optimizer's state: none shares nothing, each keeps all of it; zero1:
    moments and averages of a share of the weights each (strategies cftp and dp, gradients overlapped)."""
    collectives: Literal["hierarchical", "iallreduce", "blocking"] = "hierarchical"
    """How sums over ranks are made: in shared memory within a node and by MPI between nodes; by MPI's own all-reduce, posted and
    polled; or by its blocking one."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Type in which hierarchical sums move numbers between ranks; they are summed in fp32 either way."""
    weights_wire: Literal["fp32", "bf16"] = "fp32"
    """Type in which weights travel under sharding: zero1. With bf16 all ranks compute with weights rounded to it; the exact ones
    are kept, updated and saved once, each by the rank that has it in its share."""
    trace_step: Positive | None = None
    """Optimizer step of which each rank writes a trace (operators, phases, communication) into the store; none for no trace."""
    checkpoints: CheckpointPath = "async"
    """async: training goes on while checkpoints are written, from a copy of the state, which is memory beside it; blocking: it
    waits."""
    go_back: bool = False
    """Where several of the newest checkpoints are damaged: continue from the next older that is whole, or begin anew, instead of
    stopping."""
    memory: Memory = Memory()
    """How a rank uses the memories of its machine."""
    sampling: Sampling = Sampling()
    """How ranks share a sampling."""
    walltime: bool = False
    """Jobs are ended at their `runtime`: a training or sampling then saves and stops before, to be run again."""
    inputs: Literal["here", "nodes"] = "here"
    """Where the user's files are seen. here: on the machine that starts the workflow too, which looks whether they are there
    before the first job; nodes: perhaps on nodes alone, so that only a job finds out."""
    scheduler: Literal["none", "slurm", "generic"] = "none"
    """Who runs the jobs. slurm: a job that stopped before its walltime puts itself back into the queue; generic: the scripts
    of that profile do it; none: this machine."""
    srun_mpi: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    """How srun's ranks find each other: hydra, MPICH's own launcher, which srun starts on the nodes; or an interface that
    `srun --mpi=list` names. auto: hydra where the MPI is MPICH, else pmix."""
    node_cores: Positive | None = None
    """Cores that a job may ask of a node; those of this machine where no scheduler runs the jobs."""
    node_memory_mb: Positive | None = None
    """Memory in MB that a job may ask of a node; none for no limit."""
    max_minutes: Positive | None = None
    """The longest walltime that a job may ask, in minutes; none for no limit."""
    prologue: Place | None = None
    """File of shell lines that run before the command of every rule, such as `module load`; one that fails ends the job."""
    gflops_per_core: float = Field(default=10.0, ge=1e-6, le=10.0**6)
    """What a core does in training, in GFLOP/s, from which walltimes follow; low, so that a job seldom ends early."""

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if self.scheduler != "none" and (self.node_cores is None or self.cpus_per_rank is None):
            raise ValueError(
                f"machine.scheduler `{self.scheduler}` needs machine.node_cores and machine.cpus_per_rank: nodes are elsewhere, "
                "and what a job asks must not depend on where it is read; `dithc doctor --write-profile` measures both"
            )
        if self.node_cores is not None and (self.launched_per_node or 1) * (self.cpus_per_rank or 1) > self.node_cores:
            raise ValueError(
                f"machine.ranks_per_node {self.launched_per_node} x cpus_per_rank {self.cpus_per_rank} is more than "
                f"machine.node_cores {self.node_cores}"
            )
        return self

    @classmethod
    def of_profile(cls, folder: Path) -> "tuple[Machine, dict[str, Any]]":
        """What a profile of the workflow engine says of the machine, and everything that it says.

        Raises:
            UserError: there is no such profile, or it cannot be read; a setting of `machine` is wrong.
        """
        from dithc.config.load import load, read_profile

        content, machine = read_profile(folder)
        return load({"machine": machine}).machine, content

    @property
    def ranks(self) -> int | None:
        """Ranks over all nodes; None where the machine decides."""
        return None if self.launched_per_node is None else self.nodes * self.launched_per_node

    @property
    def launched_per_node(self) -> int | None:
        """Ranks on a node, 1 without a launcher; None where the machine decides."""
        return 1 if self.ranks_per_node is None and self.launcher == "none" else self.ranks_per_node

    def ranks_on(self, *, num_dies: int, num_clusters: int) -> int:
        """Ranks on a node with so many dies and clusters, where nobody has given their number."""
        return num_dies if self.strategy == "cftp" else num_clusters
