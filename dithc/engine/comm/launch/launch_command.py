"""Command line that starts ranks, by launcher and MPI; `supervise` runs it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.processes import HELD, STOPPED
from dithc.engine.comm.environment import EXPECTED_RANKS_VARIABLE, for_ranks

log = get_logger(__name__)

Launcher = Literal["none", "mpiexec", "srun"]
Vendor = Literal["mpich", "openmpi", "other"]

MPIEXEC_VARIABLE = "DITHC_MPIEXEC"
HYDRA = "hydra"  # ranks under `srun` connect through the launcher of MPICH's family, which srun starts on the nodes
# Exit statuses that the command chooses: success, invalid input, run again, run is held. Any other status is an
# unplanned end.
COMMAND_STATUSES = (0, 2, STOPPED, HELD)
PROBE = "import json; from dithc.engine.comm.mpi import library_properties as p; print(json.dumps(p()))"
PROBE_SECONDS = 30


@dataclass(frozen=True)
class MpiLauncher:
    """MPI launcher and its vendor; the options depend on the vendor."""

    path: str
    vendor: Vendor


def launch_argv(
    command: Sequence[str],
    *,
    launcher: Launcher,
    nodes: int = 1,
    ranks: int = 1,
    cpus: int = 1,
    mpiexec: MpiLauncher | None = None,
    srun_mpi: str = "pmix",
    hosts: Sequence[str] = (),
    root_user: bool = False,
) -> list[str]:
    """Return the command line that starts `command` on `ranks` ranks in all. One rank needs no launcher.

    Args:
        cpus: CPUs per rank for srun, which binds. mpiexec does not bind; the ranks bind themselves.
        mpiexec: required for launcher mpiexec with several ranks, and for srun with `hydra`.
        srun_mpi: Slurm's process management interface, from the cluster (`slurm_site`).
        hosts: names of the job's nodes, for srun with `hydra`.
        root_user: whether root starts it, which Open MPI requires to be confirmed.

    Raises:
        UserError: several ranks without a launcher, fewer ranks than nodes, a number below one, an empty command.
    """
    _check(command, launcher=launcher, nodes=nodes, ranks=ranks, cpus=cpus)
    if ranks == 1 or launcher == "none":
        return list(command)
    per_node = -(-ranks // nodes)
    if launcher == "srun" and srun_mpi == HYDRA:
        assert mpiexec is not None, "hydra needs its mpiexec"
        host_options = ["-hosts", ",".join(hosts[:nodes])]
        return [mpiexec.path, "-launcher", "slurm", *host_options, "-ppn", str(per_node), "-n", str(ranks), *command]
    if launcher == "srun":
        # The same number on every node: Slurm would fill the first node, and MPICH's ranks then fail to connect.
        size = ["-N", str(nodes), "-n", str(ranks), "-c", str(cpus)]
        size += [f"--ntasks-per-node={ranks // nodes}"] if ranks % nodes == 0 else []
        return ["srun", f"--mpi={srun_mpi}", *size, "--kill-on-bad-exit=1", "--wait=60", *command]
    assert mpiexec is not None, "launcher mpiexec needs its path"
    if mpiexec.vendor == "openmpi":
        mapping = f"ppr:{per_node}:node:OVERSUBSCRIBE" if nodes > 1 else ":OVERSUBSCRIBE"
        options = ["--bind-to", "none", "--map-by", mapping, "-x", "OMP_NUM_THREADS", "-x", EXPECTED_RANKS_VARIABLE]
        options = [*(["--allow-run-as-root"] if root_user else []), *options]
    else:
        options = ["-ppn", str(per_node)] if nodes > 1 else []
    return [mpiexec.path, *options, "-n", str(ranks), *command]


def resolve_bootstrap(requested: str, explicit: str | None = None) -> tuple[str, MpiLauncher | None]:
    """Resolve `machine.srun_mpi`: return how ranks started by srun connect, and the mpiexec to use.

    MPICH's ranks connect through MPICH's own mpiexec, of which srun starts one process per node. Over Slurm's pmi2 they
    often fail: it reads at most 1,024 bytes per line. MPICH's description of a rank's addresses is longer if there are
    several networks, or by chance because it contains uninitialized memory (Slurm 22.05 to 25, MPICH 5.0). UserError if
    hydra or an mpiexec (`explicit`) is requested and does not exist.
    """
    if requested not in ("auto", HYDRA):
        return requested, None
    try:
        mpiexec = find_mpiexec(explicit)
    except UserError:
        if requested == HYDRA or explicit:
            raise
        log.info("ranks connect through pmix: mpiexec was not found")
        return "pmix", None
    if requested == HYDRA or mpiexec.vendor == "mpich":
        log.info("ranks connect through %s, which srun starts on the nodes", mpiexec.path)
        return HYDRA, mpiexec
    log.info("ranks connect through pmix: %s is not MPICH's", mpiexec.path)
    return "pmix", None


def environment_of(environment: Mapping[str, str], *, launcher: Launcher, nodes: int, hydra: bool) -> dict[str, str]:
    """Return the environment for the command line of `launch_argv`; launcher `none` leaves it unchanged.

    With `hydra`, srun starts one mpiexec per node, with all CPUs of the job on that node. Raises UserError if mpiexec
    requires srun, which is missing.
    """
    if launcher == "none":
        return dict(environment)
    if not hydra:
        on_this_node, job = launcher == "mpiexec" and nodes == 1, environment.get("SLURM_JOB_ID")
        if on_this_node and job:
            log.info("mpiexec starts the ranks on this node, not through srun of job %s", job)
        elif launcher == "mpiexec" and job and shutil.which("srun") is None:
            raise user_error(
                f"launch --launcher mpiexec --nodes {nodes}",
                got=f"SLURM_JOB_ID={job} and no srun on PATH",
                expected="srun, which mpiexec uses to start processes on the nodes of a job",
                fix="load Slurm's commands; outside that job, unset SLURM_JOB_ID and SLURM_JOBID",
            )
        return for_ranks(environment, on_this_node=on_this_node)
    # The job's variables describe a rank. A step with a number of CPUs gets only those; without one, and unbound, it
    # gets all CPUs of the job.
    rank_variables = ("SLURM_TRES_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK")
    ranks = for_ranks(environment, on_this_node=False)
    variables = {name: value for name, value in ranks.items() if not name.startswith(rank_variables)}
    return {**variables, "SLURM_CPU_BIND": "none", "SLURM_MPI_TYPE": "none", "SLURM_KILL_BAD_EXIT": "1"}


def find_mpiexec(explicit: str | None = None) -> MpiLauncher:
    """Return the specified mpiexec, else the one next to this Python, as of MPI wheels, else the first on PATH.

    UserError if it does not exist, or the specified path is not absolute or not executable.
    """
    requested = explicit or os.environ.get(MPIEXEC_VARIABLE)
    local = Path(sys.executable).parent / "mpiexec"
    if requested and not (Path(requested).is_absolute() and os.access(requested, os.X_OK)):
        fix = f"set --mpiexec or {MPIEXEC_VARIABLE} to the mpiexec of the MPI that mpi4py loads"
        raise user_error("mpiexec", got=requested, expected="absolute path of an executable file", fix=fix)
    path = requested or (str(local) if os.access(local, os.X_OK) else shutil.which("mpiexec"))
    if path is None:
        fix = f"install an MPI (`pip install 'dithc[mpi]'` installs MPICH), or load your site's and set {MPIEXEC_VARIABLE}"
        raise user_error("launcher mpiexec", got="none found", expected=f"{local}, or one on PATH", fix=fix)
    if path not in (requested, str(local)):
        log.info("mpiexec: using %s from PATH, none is installed next to this Python", path)
    return MpiLauncher(path, _vendor(path))


def probe_mpi() -> dict[str, str]:
    """Return `comm.mpi.library_properties` of a rank, or `error` with the reason if MPI does not initialize.

    The probe is a separate process, because a broken MPI hangs or kills its process.
    """
    command, environment = [sys.executable, "-c", PROBE], for_ranks(os.environ, on_this_node=True)
    options: dict[str, Any] = {"env": environment, "timeout": PROBE_SECONDS, "stdin": subprocess.DEVNULL}
    try:
        completed = subprocess.run(command, capture_output=True, text=True, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"MPI did not initialize within {PROBE_SECONDS} s"}
    if completed.returncode != 0:
        return {"error": (completed.stderr.strip() or f"exit status {completed.returncode}").splitlines()[-1]}
    return dict(json.loads(completed.stdout))


def _check(command: Sequence[str], *, launcher: Launcher, nodes: int, ranks: int, cpus: int) -> None:
    if not command:
        raise user_error(
            "launch", got="no command", expected="-- program arguments", fix="write the command after `--`"
        )
    for name, value in (("nodes", nodes), ("ranks", ranks), ("cpus", cpus)):
        if value < 1:
            raise user_error(f"launch --{name}", got=value, expected="1 or more", fix=f"correct --{name}")
    if ranks < nodes:
        raise user_error(
            "launch", got=f"{ranks} rank(s) on {nodes} nodes", expected="at least 1 rank per node", fix="lower --nodes"
        )
    if launcher == "none" and ranks > 1:
        raise user_error(
            "launch --launcher none",
            got=f"{ranks} ranks",
            expected="1 rank",
            fix="use --launcher mpiexec on one machine, srun inside a Slurm job",
        )


def _vendor(path: str) -> Vendor:
    try:
        call = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "other"
    text = (call.stdout + call.stderr).lower()
    if "open mpi" in text or "openrte" in text or "prrte" in text:
        return "openmpi"
    return "mpich" if "hydra" in text or "mpich" in text or "intel" in text else "other"
