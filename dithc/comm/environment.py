"""What the environment says about who started this process, and as one of how many; pure functions of it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Set by `dithc launch`, so that a rank can tell a wrong start from a small one.
EXPECTED_RANKS_VARIABLE = "DITHC_EXPECTED_RANKS"
NODE_VARIABLE = "DITHC_NODE"
# A file that rank 0 makes once all ranks have found each other: `dithc launch` tells a failed start from failed work by it.
# Beside it, with this ending, what a guard leaves whose rank ended before: words, and its status where it chose one.
STARTED_VARIABLE, LOST_SUFFIX = "DITHC_STARTED_FILE", ".lost"
SAID_SUFFIX = ".said-"  # likewise, and a digest: of an error that a rank has said
HYDRA_PROXY = "hydra_pmi_proxy"  # what MPICH's mpiexec starts on each node, and what starts the ranks there


@dataclass(frozen=True)
class Started:
    """How this process was started.

    Attributes:
        launcher: the interface that announced itself, for messages.
        size: number of ranks it announced; None when only the MPI library knows.
    """

    launcher: str
    size: int | None


def started_by(environment: Mapping[str, str]) -> Started | None:
    """The launcher that started this process, or None for a process on its own.

    Slurm's variables count only inside a step that `srun` started: a batch script has SLURM_NTASKS too, as one process.
    """
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return Started("Open MPI's mpiexec", int(environment["OMPI_COMM_WORLD_SIZE"]))
    if "PMI_RANK" in environment:
        size = environment.get("PMI_SIZE")
        return Started("a PMI launcher (MPICH's or Intel's mpiexec, srun --mpi=pmi2)", int(size) if size else None)
    if "PMIX_RANK" in environment:
        return Started("a PMIx launcher (srun --mpi=pmix, prterun)", None)
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return Started("srun", int(environment["SLURM_STEP_NUM_TASKS"]))
    return None


def announced_ranks(environment: Mapping[str, str]) -> int | None:
    """The number of ranks that `dithc launch` was asked for, where it started this process."""
    value = environment.get(EXPECTED_RANKS_VARIABLE)
    return int(value) if value else None


def node_name() -> str:
    """Tells nodes apart even where containers share a host name; DITHC_NODE gives this node another name.

    Ranks whose nodes have the same name exchange through shared memory: name containers apart that share a kernel but no
    /dev/shm.
    """
    if named := os.environ.get(NODE_VARIABLE):
        return named
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
