"""Checks of the MPI library, its launcher and Slurm."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dithc.core.logging import UserError
from dithc.engine.comm import environment
from dithc.engine.comm.launch import launch_command
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import Machine
from dithc.engine.scheduler import slurm_site


def mpi(_: Machine, __: Path) -> list[CheckResult]:
    """Check the MPI library of mpi4py, and the mpiexec of `dithc launch`."""
    library = launch_command.probe_mpi()
    try:
        findings = check_mpi(library, launch_command.find_mpiexec())
    except UserError:
        findings = check_mpi(library, None)
    if not (names := environment.left_over(os.environ)):
        return findings
    if (started := environment.started_by(os.environ)) is not None and started.size != 1:
        by = started.launcher
        text = f"{by} started this process with {', '.join(names)}: each command here connects to its ranks"
        fix = f"start dithc by `dithc launch`; in a shell that is not a rank, {environment.UNSET}"
        return [CheckResult("warning", "MPI", text, fix=fix, properties={"left_over": names})]
    text = f"a launcher left {', '.join(names)} here: `dithc launch` removes them; other MPI programs may fail"
    return [*findings, CheckResult("ok", "MPI", text, fix=environment.UNSET, properties={"left_over": names})]


def check_mpi(library: dict[str, str], mpiexec: launch_command.MpiLauncher | None) -> list[CheckResult]:
    launcher = f"mpiexec {mpiexec.path} ({mpiexec.vendor})" if mpiexec else "no mpiexec"
    if "error" in library:
        text = f"no MPI library: {library['error']}; a single rank works without it\n{launcher}"
        fix = "pip install 'dithc[mpi]', or set MPI4PY_LIBMPI to your site's libmpi"
        return [CheckResult("warning", "MPI", text, fix=fix, properties=library)]
    text = f"{library['vendor']}, MPI {library['standard']}, thread level {library['thread_level']}\n{launcher}"
    level: Level = "ok"
    fix, everything = "", {**library, "mpiexec": mpiexec.path if mpiexec else None}
    if mpiexec is None:
        level, fix = "warning", "start several ranks with srun, or install an MPI with its launcher"
    elif "other" not in (vendor := _vendor(library["vendor"]), mpiexec.vendor) and vendor != mpiexec.vendor:
        text = f"{text}\nthe launcher belongs to another MPI than the library: each rank would be a separate world"
        level, fix = (
            "error",
            "set --mpiexec (or DITHC_MPIEXEC) to the library's MPI, or MPI4PY_LIBMPI to the launcher's MPI",
        )
    elif library["thread_level"] != "multiple":
        level, fix = "warning", "use an MPI with MPI_THREAD_MULTIPLE, which the communication thread requires"
    return [CheckResult(level, "MPI", text, fix=fix, properties=everything)]


def _vendor(name: str) -> Literal["mpich", "openmpi", "other"]:
    lower = name.lower()
    if lower.startswith("open mpi"):
        return "openmpi"
    return "mpich" if lower.startswith(("mpich", "intel", "mvapich", "cray")) else "other"


def allocation(machine: Machine, _: Path, *, environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    """Check, inside a Slurm job, whether the allowed CPUs are the allocated ones."""
    if "SLURM_JOB_ID" not in environment:
        return []
    allowed = len(machine.limits.allowed_cpus)
    per_task, on_node = (environment.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"))
    properties = {"allowed": allowed, "cpus_per_task": per_task, "cpus_on_node": on_node}
    text, fix = f"job {environment['SLURM_JOB_ID']}: {allowed} CPU(s) allowed", ""
    if per_task.isdigit() and allowed < int(per_task):
        text += f", {per_task} requested per task"
        fix = "pass `-c` to srun too: since Slurm 22.05 a step does not inherit it from the job"
    elif on_node.isdigit() and allowed > int(on_node):
        text += f", but only {on_node} belong to the job: jobs may use each other's CPUs"
        fix = "ask the administrator for task/cgroup with ConstrainCores, or start with `srun --cpu-bind=cores`"
    return [CheckResult("warning" if fix else "ok", "Slurm job", text, fix=fix, properties=properties)]


def slurm(_: Machine, __: Path) -> list[CheckResult]:
    if not shutil.which("sbatch") or not shutil.which("srun"):
        return [CheckResult("ok", "Slurm", "no sbatch and srun here: the Slurm profile is for another machine")]
    accounting = slurm_site.accounting_replies()
    text = f"accounting (sacct) {'works' if accounting else 'does not work'}"
    fix = "run `dithc doctor --write-profile NAME` to write a profile, `--profile NAME` to test it by jobs"
    if accounting:
        return [CheckResult("ok", "Slurm", f"{text}; {fix}", properties={"accounting": True})]
    text += ": with a profile that uses sacct, the workflow would wait forever for finished jobs"
    return [CheckResult("warning", "Slurm", text, fix=fix, properties={"accounting": False})]
