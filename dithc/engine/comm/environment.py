"""Detection of launchers in the environment, and the environment of ranks started by this process."""

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dithc.core.processes import process_fields

# Set by `dithc launch`, so that a rank can distinguish a failed start from a single process.
EXPECTED_RANKS_VARIABLE = "DITHC_EXPECTED_RANKS"
NODE_VARIABLE = "DITHC_NODE_NAME"
# Rank 0 creates the first file once all ranks are connected; `dithc launch` thereby distinguishes a failed start from
# failed work. A watchdog that outlives its rank writes the file with the second ending: a message, and the exit status if
# the watchdog chose it.
STARTED_VARIABLE, LOST_SUFFIX = "DITHC_STARTUP_FILE", ".lost"
LOGGED_SUFFIX = ".logged-"  # ending, before a digest, of the marker of an error that a rank has logged
HYDRA_PROXY = "hydra_pmi_proxy"  # started by MPICH's mpiexec on each node; it starts the ranks there


# Variables that connect one process with its launcher. Names that contain MCA are settings of Open MPI.
CONNECTION = ("PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "HYDI_", "PALS_", "MPI_LOCAL", "MPIR_CVAR_PMI_VERSION")
SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
# Variables of one task of Slurm, which mpiexec would hand to all of its ranks.
TASK = tuple(f"SLURM_{name}" for name in ("STEP", "PROCID", "LOCALID", "NODEID", "TASK_PID", "GTIDS", "MPI_TYPE"))
# Without these settings, mpiexec starts its processes through the job manager or on the hosts of a file, even on one
# node.
ON_THIS_NODE = {
    "HYDRA_LAUNCHER": "fork",
    "HYDRA_RMK": "user",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",
    **{f"{owner}_MCA_{part}": "^slurm" for owner in ("OMPI", "PRTE") for part in ("plm", "ras")},
}
HOSTS = ("HYDRA_HOST_FILE", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_HOST_FILE", "PBS_NODEFILE", "PE_HOSTFILE", "LSB_MCPU_HOSTS")
UNSET = "unset ${!PMI*} ${!OMPI_COMM*}"  # bash syntax
LISTENING = "0A"  # state in /proc/net/tcp
# Variables and processes of launchers that announce PMI_SIZE and do not connect their ranks by PMI_FD or PMI_PORT.
OTHER_CONNECTIONS = ("PMI_CONTROL_PORT", "PALS_RANKID", "ALPS_APP_PE", "FLUX_TASK_RANK")
LAUNCHERS = {
    HYDRA_PROXY,
    *("pmi_proxy", "mpiexec", "mpirun", "mpiexec.hydra", "orted", "prted", "prterun", "palsd", "flux-shell"),
}


@dataclass(frozen=True)
class LaunchInfo:
    """Interface that announced itself to this process, and its number of ranks; None if only the MPI library has it."""

    launcher: str
    size: int | None


def started_by(environment: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launcher that started this process and still serves it; None for a single process.

    A shell inside a job, or a program that a rank started, inherits variables of a launcher that does not serve it.
    Slurm's variables count only inside a job step, because a batch script has SLURM_NTASKS too.
    """
    step = int(environment.get("SLURM_STEP_NUM_TASKS") or 0) or None
    if "OMPI_COMM_WORLD_SIZE" in environment and _serves_pmix(environment):
        return LaunchInfo("Open MPI's mpiexec", int(environment["OMPI_COMM_WORLD_SIZE"]))
    if ("PMI_RANK" in environment or "PMI_ID" in environment) and _serves_pmi(environment):
        size = environment.get("PMI_SIZE")
        return LaunchInfo("a PMI launcher (MPICH's or Intel's mpiexec, srun --mpi=pmi2)", int(size) if size else None)
    if "PMIX_RANK" in environment and _serves_pmix(environment):
        return LaunchInfo("a PMIx launcher (srun --mpi=pmix, prterun)", step)
    if "SLURM_PROCID" in environment and step is not None and step > 1:
        return LaunchInfo("srun", step)
    return None


def left_over(environment: Mapping[str, str]) -> list[str]:
    """Return the variables by which a launcher would connect a rank."""
    return sorted(name for name in environment if name.startswith(CONNECTION) and not name.startswith(SETTINGS))


def for_ranks(environment: Mapping[str, str], *, on_this_node: bool) -> dict[str, str]:
    """Return the environment for ranks and for the probe of MPI; `on_this_node`: mpiexec does not use a job manager."""
    dropped = {*left_over(environment)}
    if on_this_node:
        dropped |= {*HOSTS, *(name for name in environment if name.startswith(TASK))}
    variables = {name: value for name, value in environment.items() if name not in dropped}
    if on_this_node:
        return variables | ON_THIS_NODE
    # A nested job step would wait for the end of the outer step, which waits for the nested one.
    return variables | ({"SLURM_OVERLAP": "1"} if "SLURM_STEP_ID" in environment else {})


def _serves_pmi(environment: Mapping[str, str]) -> bool:
    """Check that a PMI connection is open: a file descriptor, a local port, or another running launcher."""
    if environment.get("PMI_FD", "").isdigit():
        try:
            return stat.S_ISSOCK(os.fstat(int(environment["PMI_FD"])).st_mode)
        except OSError:
            return False
    if "PMI_PORT" in environment:
        return _listens({environment["PMI_PORT"].rpartition(":")[2]})
    size = environment.get("PMI_SIZE", "")
    has_several_ranks = size.isdigit() and int(size) > 1
    return has_several_ranks and (any(name in environment for name in OTHER_CONNECTIONS) or _has_launcher(os.getppid()))


def _has_launcher(pid: int) -> bool:
    """Check whether a process or one of its ancestors is a launcher of the same user."""
    while pid > 1 and (fields := process_fields(pid)):
        if name_of(pid) in LAUNCHERS:
            return True
        pid = int(fields[1])
    return False


def name_of(pid: int) -> str:
    """Return the kernel's name of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _serves_pmix(environment: Mapping[str, str]) -> bool:
    """Check that a PMIx server named in the environment listens; each rank has one on its node."""
    addresses = [value for name, value in environment.items() if name.startswith("PMIX_SERVER_URI")]
    if any(Path(address.rpartition(":")[2]).is_socket() for address in addresses):  # PMIx 1
        return True
    return _listens({address.rpartition(":")[2] for address in addresses if "tcp" in address})


def _listens(ports: set[str]) -> bool:
    """Check whether a local process listens on one of the TCP ports; True for any port if the kernel lists none."""
    tables = [path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    listening = {str(int(row[1].rpartition(":")[2], 16)) for row in rows if row[3] == LISTENING}
    return bool(ports & listening if tables else ports)


def node_name() -> str:
    """Return DITHC_NODE_NAME, else a name that is unique per node, also if containers share a host name.

    Ranks on nodes of the same name exchange through shared memory. Containers that share a kernel but not /dev/shm need
    different names.
    """
    if name := os.environ.get(NODE_VARIABLE):
        return name
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot_id.read_text().strip() if boot_id.exists() else ''}"
