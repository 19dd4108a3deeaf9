"""Checks of what starts and connects ranks: the MPI library, its launcher, Slurm."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dithc.comm import launch
from dithc.doctor.finding import Finding
from dithc.hardware import Machine
from dithc.log import UserError

ACCOUNTING_LIMIT_SECONDS = 20


def mpi(_: Machine, __: Path) -> list[Finding]:
    """The library that mpi4py loads, and the mpiexec that `dithc launch` would use."""
    facts = launch.probe_mpi()
    try:
        findings = judge_mpi(facts, launch.find_mpiexec())
    except UserError:
        findings = judge_mpi(facts, None)
    if not (names := launch.left_over(os.environ)):
        return findings
    if (started := launch.started_by(os.environ)) is not None and started.size != 1:
        text = (
            f"{started.launcher} started this process with {', '.join(names)}: each command here connects to its ranks"
        )
        fix = f"start dithc by `dithc launch`; in a shell that is no rank, {launch.UNSET}"
        return [Finding(level="warn", topic="MPI", text=text, fix=fix, facts={"left_over": names})]
    text = f"a launcher left {', '.join(names)} here: `dithc launch` removes them; other MPI programs may fail"
    return [*findings, Finding(level="ok", topic="MPI", text=text, fix=launch.UNSET, facts={"left_over": names})]


def judge_mpi(facts: dict[str, str], mpiexec: launch.MpiExec | None) -> list[Finding]:
    """Whether library and launcher belong together."""
    launcher = f"mpiexec {mpiexec.path} ({mpiexec.vendor})" if mpiexec else "no mpiexec"
    if "error" in facts:
        text = f"no MPI library: {facts['error']}; one rank works without\n{launcher}"
        fix = "pip install 'dithc[mpi]', or point MPI4PY_LIBMPI at your site's libmpi"
        return [Finding(level="warn", topic="MPI", text=text, fix=fix, facts=facts)]
    text = f"{facts['vendor']}, MPI {facts['standard']}, thread level {facts['thread_level']}\n{launcher}"
    everything: dict[str, str | None] = {**facts, "mpiexec": mpiexec.path if mpiexec else None}
    if mpiexec is None:
        fix = "only srun can start several ranks here; or install an MPI with its launcher"
        return [Finding(level="warn", topic="MPI", text=text, fix=fix, facts=everything)]
    if "other" not in (vendor := _vendor(facts["vendor"]), mpiexec.vendor) and vendor != mpiexec.vendor:
        text = f"{text}\nthe launcher is of another MPI than the library: each rank would be a world of its own"
        fix = "use --mpiexec (or DITHC_MPIEXEC) of the library's MPI, or point MPI4PY_LIBMPI at the launcher's"
        return [Finding(level="bad", topic="MPI", text=text, fix=fix, facts=everything)]
    if facts["thread_level"] != "multiple":
        fix = "communication in its own thread needs MPI_THREAD_MULTIPLE; use an MPI that is built with it"
        return [Finding(level="warn", topic="MPI", text=text, fix=fix, facts=everything)]
    return [Finding(level="ok", topic="MPI", text=text, facts=everything)]


def _vendor(name: str) -> Literal["mpich", "openmpi", "other"]:
    lower = name.lower()
    if lower.startswith("open mpi"):
        return "openmpi"
    return "mpich" if lower.startswith(("mpich", "intel", "mvapich", "cray")) else "other"


def allocation(machine: Machine, _: Path, *, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Inside a Slurm job: whether the CPUs that this process may use are those it was given."""
    if "SLURM_JOB_ID" not in environment:
        return []
    allowed = len(machine.limits.allowed_cpus)
    given, on_node = (environment.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"))
    facts = {"allowed": allowed, "cpus_per_task": given, "cpus_on_node": on_node}
    text, fix = f"job {environment['SLURM_JOB_ID']}: {allowed} CPU(s) allowed", ""
    if given.isdigit() and allowed < int(given):
        text += f", {given} a task asked for"
        fix = "give `-c` to srun too: since Slurm 22.05 a step does not take it over from the job"
    elif on_node.isdigit() and allowed > int(on_node):
        text += f", but only {on_node} belong to the job: it may take the CPUs of others, or they its own"
        fix = "ask the administrator for the task/cgroup plugin with ConstrainCores, or start with `srun --cpu-bind=cores`"
    return [Finding(level="warn" if fix else "ok", topic="Slurm job", text=text, fix=fix, facts=facts)]


def slurm(_: Machine, __: Path) -> list[Finding]:
    """Whether there is a Slurm, and whether it keeps an account of jobs."""
    if not shutil.which("sbatch") or not shutil.which("srun"):
        return [
            Finding(level="ok", topic="Slurm", text="no sbatch and srun here: the Slurm profile is for another machine")
        ]
    accounting = _accounting_works()
    text = f"accounting (sacct) {'works' if accounting else 'does not work'}"
    fix = "dithc doctor --write-profile NAME writes a profile for it, --profile NAME checks one by jobs"
    if accounting:
        return [Finding(level="ok", topic="Slurm", text=f"{text}; {fix}", facts={"accounting": True})]
    text += ": with a profile that follows jobs by it, the workflow would wait for ever on finished ones"
    return [Finding(level="warn", topic="Slurm", text=text, fix=fix, facts={"accounting": False})]


def _accounting_works() -> bool:
    try:
        line = ["sacct", "-n", "-X", "--starttime", "now"]
        return subprocess.run(line, capture_output=True, timeout=ACCOUNTING_LIMIT_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
