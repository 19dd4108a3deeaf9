"""Test of a profile on the present cluster: its limits compared with Slurm's, and a job on every type of node."""

import time
from pathlib import Path
from typing import Any

from dithc.config import MachineConfig, load_machine
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.doctor.profile_writer import PROFILES, try_ranks
from dithc.engine.scheduler import slurm_site

CLOCK_SECONDS = 5.0


def check_profile(name: str, here: slurm_site.SlurmSite | None) -> list[CheckResult]:
    """Return all findings about a profile, by its folder or its name in `profiles/`; UserError if it is unreadable."""
    folder = Path(name) if (Path(name) / "config.yaml").exists() else PROFILES / name
    machine, content = load_machine(folder)
    if content.get("executor") != "slurm":
        text = f"{folder} uses {content.get('executor') or 'this machine'}: only profiles for Slurm are tested by jobs"
        return [CheckResult("ok", "profile", text)]
    if here is None:
        fix = "rerun on the cluster's login node"
        return [CheckResult("bad", "Slurm", "no working Slurm commands (sbatch, scontrol)", fix=fix)]
    given = content.get("default-resources") or {}
    partition = here.partition(given.get("slurm_partition"))
    findings = [*_scheduler(content, machine, here), *_limits(machine, partition, given.get("slurm_partition"))]
    if partition is None or any(finding.level == "bad" for finding in findings):
        return findings
    for kind in partition.kinds:
        if kind.is_up:
            findings += _tried(machine, partition, given, nodes=1, node=kind.names[0])
        else:
            text = f"{', '.join(kind.names[:4])} ({kind.cpus} CPUs, {kind.memory_mb} MB) accept no jobs now"
            findings.append(CheckResult("warn", "nodes", text, fix="run `sinfo -R` for the reason"))
    return findings + (_tried(machine, partition, given, nodes=machine.nodes, node=None) if machine.nodes > 1 else [])


def _scheduler(content: dict[str, Any], machine: MachineConfig, here: slurm_site.SlurmSite) -> list[CheckResult]:
    status, age = content.get("slurm-status-command", "sacct"), here.min_job_age_seconds
    if status == "sacct" and not here.accounting:
        text = "jobs are polled by sacct, but accounting does not work here: the workflow would wait forever"
        findings = [CheckResult("bad", "accounting", text, fix="set slurm-status-command: squeue")]
    elif status == "squeue" and age < 3 * content.get("slurm-init-seconds-before-status-checks", 40):
        text = f"finished jobs leave squeue after {age} s (MinJobAge), and accounting does not work"
        findings = [CheckResult("bad", "accounting", text, fix="use the profile `generic`, which needs neither")]
    else:
        findings = [CheckResult("ok", "accounting", f"jobs are polled by {status}")]
    if machine.scheduler != "slurm":
        fix = "set machine={scheduler: slurm, ...}: otherwise a training run that stopped at its walltime is not rerun"
        findings.append(CheckResult("bad", "scheduler", f"machine.scheduler is {machine.scheduler}", fix=fix))
    if machine.launcher == "srun" and machine.srun_mpi not in ("auto", "hydra", *here.mpi):
        text = f"srun supports {', '.join(here.mpi) or 'no process management interface'}, not {machine.srun_mpi}"
        findings.append(CheckResult("bad", "srun", text, fix="set machine.srun_mpi to one of them, or remove it"))
    return findings


def _limits(machine: MachineConfig, partition: slurm_site.Partition | None, name: str | None) -> list[CheckResult]:
    if partition is None or not partition.kinds:
        fix = "set default-resources: slurm_partition to a partition in `sinfo`"
        return [CheckResult("bad", "partition", f"partition {name!r} does not exist", fix=fix)]
    faults = [] if partition.is_up else [f"partition {partition.name} accepts no jobs"]
    for key, wanted, most in (
        ("cpus_per_node", machine.cpus_per_node, max(kind.cpus for kind in partition.kinds)),
        ("memory_per_node_mb", machine.memory_per_node_mb, max(kind.memory_mb for kind in partition.kinds)),
    ):
        if (wanted or 0) > most:
            faults.append(f"{key} {wanted}: the largest node has {most}")
    limit = partition.max_walltime_minutes
    if limit is not None and (machine.max_walltime_minutes is None or machine.max_walltime_minutes > limit):
        faults.append(
            f"max_walltime_minutes {machine.max_walltime_minutes}: jobs of {partition.name} end after {limit}"
        )
    if machine.nodes > (partition.max_nodes or machine.nodes):
        faults.append(f"nodes {machine.nodes}: a job of {partition.name} has at most {partition.max_nodes}")
    if faults:
        fix = "correct `machine` in the profile, or rewrite it: dithc doctor --write-profile"
        return [CheckResult("bad", "limits", "\n".join(faults), fix=fix)]
    text = f"partition {partition.name} matches `machine`: {machine.cpus_per_node} CPUs, {machine.memory_per_node_mb} MB per node"
    return [CheckResult("ok", "limits", text)]


def _tried(
    machine: MachineConfig, partition: slurm_site.Partition, given: dict[str, Any], *, nodes: int, node: str | None
) -> list[CheckResult]:
    per_node, cpus = machine.launched_per_node or 1, machine.cpus_per_rank or 1
    began = time.time()
    seen, why = try_ranks(
        partition.name,
        nodes=nodes,
        ranks=nodes * per_node,
        cpus=cpus,
        launcher=machine.launcher if nodes * per_node > 1 else "none",
        srun_mpi=machine.srun_mpi,
        node=node,
        account=given.get("slurm_account"),
    )
    where = f"{nodes} nodes" if node is None else f"node {node}"
    if not seen:
        fix = "read its output; if the job is only waiting, retry later"
        return [CheckResult("bad", where, f"the job failed: {why}", fix=fix)]
    return judge_ranks(seen, where=where, ranks=nodes * per_node, cpus=cpus, began=began, ended=time.time())


def judge_ranks(
    seen: list[dict[str, Any]], *, where: str, ranks: int, cpus: int, began: float, ended: float
) -> list[CheckResult]:
    """Return the findings about the facts `seen` by the ranks of a trial between two times of this machine's clock."""
    sizes, hosts = {row["size"] for row in seen}, {row["host"] for row in seen}
    few, pages = min(row["cpus"] for row in seen), {str(row["huge_pages"]) for row in seen}
    off = max(max(began - row["time"], row["time"] - ended) for row in seen)
    found: list[tuple[Level, str, str, str]] = []
    if len(seen) == ranks and sizes == {ranks}:
        found.append(("ok", "launcher and MPI", f"{ranks} rank(s) on {', '.join(sorted(hosts))} connected", ""))
    else:
        text = f"{len(seen)} rank(s) answered in worlds of {sorted(sizes)}, {ranks} were started"
        fix = "launcher and MPI do not match: set machine.srun_mpi, or MPI4PY_LIBMPI to the site's library"
        found.append(("bad", "MPI", text, fix))
    if all(row["token_seen"] for row in seen):
        found.append(("ok", "files", "this folder is shared", ""))
    else:
        fix = "work in a folder that login node and compute nodes share"
        found.append(("bad", "files", "a file written here is not visible there", fix))
    fix = "see the partition's settings (task/cgroup, task/affinity), or lower machine.cpus_per_rank"
    text = f"a rank may use {few} CPU(s), {cpus} were requested"
    found.append(("warn", "cores", text, fix) if few < cpus else ("ok", "cores", text, ""))
    if off > CLOCK_SECONDS:
        fix = "ask the administrator for NTP: deadlines of jobs depend on the clock"
        found.append(("warn", "clock", f"a clock differs by {off:.0f} s from this machine's", fix))
    else:
        found.append(("ok", "clock", "clocks agree", ""))
    fix = "ask the administrator for `madvise` in /sys/kernel/mm/transparent_hugepage/enabled"
    text = f"transparent huge pages: {', '.join(sorted(pages))}"
    fine = pages <= {"always", "madvise"}
    found.append(("ok", "huge pages", text, "") if fine else ("warn", "huge pages", text, fix))
    return [CheckResult(level, f"{where}: {topic}", text, fix=fix) for level, topic, text, fix in found]
