"""`dithc launch`: starts and supervises a command on several ranks with the machine's launcher."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.core.logging import get_logger, user_error
from dithc.core.processes import STOPPED
from dithc.core.units import format_bytes

if TYPE_CHECKING:
    from dithc.engine.comm.launch import launch_command

SUMMARY = "Start a command on ranks, forward signals and exit status, and stop it when its driver has ended."
EXAMPLE = (
    "dithc launch --launcher mpiexec --ranks 2 --cpus-per-rank 1 -- dithc train --config config/experiments/demo.yaml "
    "--run pretrain --latents results/demo/latents/landscape/manifest.json --out "
    "results/demo/runs/pretrain/step_0000160.json"
)

KILLED = 137  # 128 + SIGKILL
JOB_VARIABLE = "SLURM_JOB_ID"
ENDED_WITHIN_SECONDS = 300.0
log = get_logger("dithc.launch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    launcher = "launcher of several ranks (default: srun in a Slurm job, else mpiexec)"
    parser.add_argument("--launcher", choices=("none", "mpiexec", "srun"), help=launcher)
    parser.add_argument("--nodes", type=int, default=1, help="nodes to spread the ranks over (default 1)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ranks", type=int, default=1, help="ranks in all (default 1; one needs no launcher)")
    strategy = "instead of --ranks: one rank per die (cftp) or core cluster (dp, dp+tp) of this machine, on every node"
    size.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), help=strategy)
    cpus = "CPUs per rank, also OMP_NUM_THREADS (default 1; with --strategy, an equal share of this machine)"
    parser.add_argument("--cpus-per-rank", type=int, help=cpus)
    parser.add_argument(
        "--cpus-per-node", type=int, help="CPUs shared by the ranks of a node, instead of --cpus-per-rank"
    )
    parser.add_argument("--mpiexec", metavar="PATH", help="absolute path of mpiexec (default: next to this Python)")
    grace = "time to stop without the driver (default 60)"
    parser.add_argument("--grace-seconds", type=float, default=60.0, help=grace)
    parser.add_argument(
        "--srun-mpi",
        metavar="NAME",
        default=os.environ.get("DITHC_SRUN_MPI", "auto"),
        help="bootstrap of ranks under srun: hydra (MPICH's mpiexec, started by srun), or an interface of "
        "`srun --mpi=list` (default: DITHC_SRUN_MPI, else auto: hydra for MPICH, else pmix)",
    )
    parser.add_argument("--walltime-minutes", type=float, metavar="M", help="end of the job, if not reported")
    scheduler = "scheduler of this job; it requeues a command that stopped and saved (status 75)"
    parser.add_argument("--scheduler", choices=("none", "slurm", "generic"), default="none", help=scheduler)
    command = "after `--`: the program and its arguments; a script (NAME.py) runs with dithc's Python"
    parser.add_argument("command", nargs=argparse.REMAINDER, help=command)


def run(args: argparse.Namespace) -> int:
    from dithc.engine.comm.launch import check_shared_memory, launch_command, supervise
    from dithc.engine.hardware import Limits
    from dithc.engine.scheduler import slurm_site

    for name, value in (("--cpus-per-rank", args.cpus_per_rank), ("--cpus-per-node", args.cpus_per_node)):
        if value is not None and value < 1:
            raise user_error(f"launch {name}", got=value, expected="1 or more", fix=f"correct {name}")
    ranks, cores = _ranks_and_cores(args) if args.strategy else (args.ranks, None)
    node_cpus = args.cpus_per_node or cores
    cpus = args.cpus_per_rank or (max(1, node_cpus * args.nodes // ranks) if node_cpus else 1)
    backend = args.launcher or _default_launcher(args.nodes if ranks > 1 else 0)
    launcher: launch_command.Launcher = backend if ranks > 1 else "none"
    mpiexec = launch_command.find_mpiexec(args.mpiexec) if launcher == "mpiexec" else None
    srun_mpi, hosts = args.srun_mpi, []
    if launcher == "srun":
        srun_mpi, mpiexec = launch_command.resolve_bootstrap(args.srun_mpi, args.mpiexec)
        if srun_mpi == launch_command.HYDRA:
            hosts, launcher = _hosts(args.nodes), "mpiexec"
    environment = launch_command.environment_of(os.environ, launcher=launcher, nodes=args.nodes, hydra=bool(hosts))
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    if command and launcher == "mpiexec" and not hosts:
        _check_program(command[0])
    argv = launch_command.launch_argv(
        command,
        launcher=backend,
        nodes=args.nodes,
        ranks=ranks,
        cpus=cpus,
        mpiexec=mpiexec,
        srun_mpi=srun_mpi,
        hosts=hosts,
        root_user=os.geteuid() == 0,
    )
    if launcher == "mpiexec" and args.nodes == 1 and mpiexec and mpiexec.vendor == "mpich" and not hosts:
        check_shared_memory(ranks)
    variables = {"OMP_NUM_THREADS": str(cpus), "DITHC_EXPECTED_RANKS": str(ranks)}
    kills = Limits.out_of_memory_kills()
    status = supervise(
        argv,
        environment={**environment, **_scheduling(args), **variables},
        launcher=launcher,
        vendor=mpiexec.vendor if mpiexec else "other",
        grace_seconds=args.grace_seconds,
        rendezvous_folder=_rendezvous_folder(args.nodes) if ranks > 1 and Path(command[0]).name == "dithc" else None,
    )
    if status == KILLED:
        _log_kill(command, by_system=Limits.out_of_memory_kills() > kills)
    if args.scheduler == "none":
        return status
    if status == STOPPED:
        return _requeue(args.scheduler, "stopped and saved")
    if status not in launch_command.COMMAND_STATUSES and (lost := slurm_site.lost(hosts)):
        return _requeue(args.scheduler, f"node {', '.join(lost)} was lost")
    return status


def _rendezvous_folder(nodes: int) -> Path | None:
    """Return a writable folder that all nodes share, for the marker files of a start, or None."""
    from dithc.core.caches import is_writable

    folder = Path.cwd()
    if is_writable(folder):
        return folder
    temp = Path(tempfile.gettempdir()) if nodes == 1 else None
    effect = f"marker files of this start are in {temp}" if temp else "ranks that fail to connect are not restarted"
    log.warning(f"{folder} is not writable: {effect}")
    return temp


def _check_program(name: str) -> None:
    """Reject a missing program. Otherwise mpiexec reports it for every rank and is restarted."""
    if shutil.which(name) is None:
        fix = "check the command after `--`, or pass the absolute path of the program"
        raise user_error("command to launch", got=f"{name}: no such program", expected="a program", fix=fix)


def _log_kill(command: list[str], *, by_system: bool) -> None:
    """Log the likely cause of a SIGKILL, because the killed process cannot."""
    from dithc.engine.hardware import Limits

    limits = Limits.read()
    limit = "none" if limits.memory_limit_bytes is None else format_bytes(limits.memory_limit_bytes)
    free = "unknown" if limits.memory_available_bytes is None else format_bytes(limits.memory_available_bytes)
    error = user_error(
        f"{' '.join(command[:2])} was ended by SIGKILL",
        got="this job's control group had no memory left"
        if by_system
        else "a signal from outside, or a machine without memory",
        expected=f"memory for all ranks; the limit of this job is {limit}, {free} are free now",
        fix="lower `batch_size` of the evaluation, or request more memory (`resources: {sample: {mem_mb}}`)"
        if "sample" in command
        else "lower `block_size` of the restoration, or request more memory (`resources: {restore: {mem_mb}}`)"
        if "restore" in command
        else "see the estimate at the start of the log (`needs about`): lower `micro_batch_size`, set "
        "`activation_checkpointing: block` or "
        "`machine.memory: {fast_memory_gib, spill_folder, spill_gib}`, or request more memory "
        "(`resources: {train: {mem_mb}}`)",
    )
    log.error(str(error))


def _default_launcher(nodes: int) -> "launch_command.Launcher":
    """Return srun inside a Slurm job, else mpiexec; also mpiexec on one node if Slurm does not report the job."""
    from dithc.engine.scheduler import slurm_site

    job = os.environ.get(JOB_VARIABLE)
    if not job or nodes < 1:
        return "mpiexec"
    if nodes > 1 or (shutil.which("srun") and slurm_site.nodes_of(job)):
        return "srun"
    log.warning("job %s (SLURM_JOB_ID) has no nodes, or srun is missing: starting the ranks here with mpiexec", job)
    return "mpiexec"


def _hosts(nodes: int) -> list[str]:
    from dithc.engine.scheduler import slurm_site

    job = os.environ.get(JOB_VARIABLE)
    hosts = slurm_site.nodes_of(job) if job else []
    if len(hosts) < nodes:
        got = f"{len(hosts)} node(s) of job {job}" if job else "no Slurm job"
        fix = "start inside a job (`sbatch`, `salloc`) with that many nodes, on which squeue and scontrol work"
        raise user_error("launch --launcher srun", got=got, expected=f"a job of {nodes} node(s)", fix=fix)
    return hosts


def _scheduling(args: argparse.Namespace) -> dict[str, str]:
    """Return environment variables with the end of the job, preferably from the scheduler, and the file of slow nodes."""
    from dithc.engine.scheduler import deadline, slurm

    if args.scheduler == "generic" and deadline.seconds_left() is not None:
        return {}  # the job script has set it
    job = os.environ.get(JOB_VARIABLE)
    end = slurm.deadline(job) if job and args.scheduler == "slurm" else None
    if end is None and args.walltime_minutes is not None:
        end = time.time() + 60 * args.walltime_minutes
    slow_nodes = {deadline.EXCLUDE_FILE: str(_exclude_file())} if args.scheduler == "slurm" else {}
    return deadline.environment(end) | slow_nodes


def _exclude_file() -> Path:
    return Path.cwd() / f".dithc-exclude-{os.environ.get(JOB_VARIABLE)}"


def _requeue(scheduler: str, reason: str) -> int:
    """Requeue this job, without slow nodes, and wait for its end, so that it does not count as failed."""
    from dithc.engine.scheduler import deadline, slurm

    if scheduler == "generic":
        deadline.mark_again()  # read by the process that follows the job and resubmits it
        return STOPPED
    job = os.environ.get(JOB_VARIABLE)
    slow_file = _exclude_file()
    slow_nodes = slow_file.read_text().split(",") if slow_file.exists() else []
    slow_file.unlink(missing_ok=True)
    if slow_nodes:  # Slurm requests this process to end while it still has to exclude them
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not job or not slurm.requeue(job):
        log.error(f"{reason}, but job {job or '?'} could not be requeued by {scheduler}: rerun the command")
        return STOPPED
    nodes = f" on other nodes than {', '.join(slow_nodes)}" if slow_nodes else ""
    log.info(f"{reason}: job {job} was requeued and will continue{nodes}")
    if slow_nodes and (refusal := slurm.exclude(job, slow_nodes)):
        log.warning(f"job {job} may continue on the same nodes: {refusal}")
    time.sleep(ENDED_WITHIN_SECONDS)
    log.error(f"job {job} was requeued, but did not end within {ENDED_WITHIN_SECONDS:.0f} s")
    return STOPPED


def _ranks_and_cores(args: argparse.Namespace) -> tuple[int, int]:
    """Return the ranks over all nodes and the cores per node, assuming that all nodes equal this one."""
    from dithc.config import MachineConfig
    from dithc.engine.hardware import discover_machine

    cores = discover_machine().visible_cores
    dies, clusters = {core.die for core in cores}, {core.cluster for core in cores}
    per_node = MachineConfig(strategy=args.strategy).ranks_on(num_dies=len(dies) or 1, num_clusters=len(clusters) or 1)
    message = "%d rank(s) per node for strategy %s: this machine has %d die(s) and %d cluster(s)"
    log.info(message, per_node, args.strategy, len(dies), len(clusters))
    return int(per_node * args.nodes), len(cores)
