"""Test of a profile on the present cluster: its limits compared with Slurm's, and a job on every type of node."""

import time
from pathlib import Path
from typing import Any

from dithc.cluster import site
from dithc.config import Machine
from dithc.doctor.finding import Finding
from dithc.doctor.profile import PROFILES, try_ranks

CLOCK_SECONDS = 5.0


def check_profile(name: str, here: site.Site | None) -> list[Finding]:
    """Return all findings about a profile.

    Args:
        name: folder of the profile, or its name in `profiles/`.
        here: result of `probe_site`; None without Slurm.

    Raises:
        UserError: the profile does not exist or is unreadable.
    """
    folder = Path(name) if (Path(name) / "config.yaml").exists() else PROFILES / name
    machine, content = Machine.of_profile(folder)
    if content.get("executor") != "slurm":
        text = f"{folder} uses {content.get('executor') or 'this machine'}: only profiles for Slurm are tested by jobs"
        return [Finding(level="ok", topic="profile", text=text)]
    if here is None:
        fix = "rerun on the cluster's login node"
        return [Finding(level="bad", topic="Slurm", text="no working Slurm commands (sbatch, scontrol)", fix=fix)]
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
            findings.append(Finding(level="warn", topic="nodes", text=text, fix="run `sinfo -R` for the reason"))
    return findings + (_tried(machine, partition, given, nodes=machine.nodes, node=None) if machine.nodes > 1 else [])


def _scheduler(content: dict[str, Any], machine: Machine, here: site.Site) -> list[Finding]:
    findings = []
    status = content.get("slurm-status-command", "sacct")
    if status == "sacct" and not here.accounting:
        findings.append(
            Finding(
                level="bad",
                topic="accounting",
                text="jobs are polled by sacct, but accounting does not work here: the workflow would wait forever",
                fix="set slurm-status-command: squeue",
            )
        )
    elif status == "squeue" and here.min_job_age_seconds < 3 * content.get(
        "slurm-init-seconds-before-status-checks", 40
    ):
        findings.append(
            Finding(
                level="bad",
                topic="accounting",
                text=f"finished jobs leave squeue after {here.min_job_age_seconds} s (MinJobAge), and accounting "
                "does not work",
                fix="use the profile `generic`, which needs neither",
            )
        )
    else:
        findings.append(Finding(level="ok", topic="accounting", text=f"jobs are polled by {status}"))
    if machine.scheduler != "slurm":
        fix = "set machine={scheduler: slurm, ...}: otherwise a training run that stopped at its walltime is not rerun"
        findings.append(
            Finding(level="bad", topic="scheduler", text=f"machine.scheduler is {machine.scheduler}", fix=fix)
        )
    if machine.launcher == "srun" and machine.srun_mpi not in ("auto", "hydra", *here.mpi):
        text = f"srun supports {', '.join(here.mpi) or 'no process management interface'}, not {machine.srun_mpi}"
        findings.append(
            Finding(level="bad", topic="srun", text=text, fix="set machine.srun_mpi to one of them, or remove it")
        )
    return findings


def _limits(machine: Machine, partition: site.Partition | None, name: str | None) -> list[Finding]:
    if partition is None or not partition.kinds:
        fix = "set default-resources: slurm_partition to a partition in `sinfo`"
        return [Finding(level="bad", topic="partition", text=f"partition {name!r} does not exist", fix=fix)]
    faults = [] if partition.is_up else [f"partition {partition.name} accepts no jobs"]
    fitting = [kind for kind in partition.kinds if kind.cpus >= (machine.node_cores or 1)]
    if not fitting:
        faults.append(
            f"node_cores {machine.node_cores}: the largest node has {max(kind.cpus for kind in partition.kinds)}"
        )
    if not any(kind.memory_mb >= (machine.node_memory_mb or 0) for kind in partition.kinds):
        most = max(kind.memory_mb for kind in partition.kinds)
        faults.append(f"node_memory_mb {machine.node_memory_mb}: the largest node has {most}")
    limit = partition.max_minutes
    if limit is not None and (machine.max_minutes is None or machine.max_minutes > limit):
        faults.append(f"max_minutes {machine.max_minutes}: jobs of {partition.name} end after {limit}")
    if machine.nodes > (partition.max_nodes or machine.nodes):
        faults.append(f"nodes {machine.nodes}: a job of {partition.name} has at most {partition.max_nodes}")
    if faults:
        fix = "correct `machine` in the profile, or rewrite it: dithc doctor --write-profile"
        return [Finding(level="bad", topic="limits", text="\n".join(faults), fix=fix)]
    text = (
        f"partition {partition.name} matches `machine`: {machine.node_cores} CPUs, {machine.node_memory_mb} MB per node"
    )
    return [Finding(level="ok", topic="limits", text=text)]


def _tried(
    machine: Machine, partition: site.Partition, given: dict[str, Any], *, nodes: int, node: str | None
) -> list[Finding]:
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
        return [Finding(level="bad", topic=where, text=f"the job failed: {why}", fix=fix)]
    return judge_ranks(seen, where=where, ranks=nodes * per_node, cpus=cpus, began=began, ended=time.time())


def judge_ranks(
    seen: list[dict[str, Any]], *, where: str, ranks: int, cpus: int, began: float, ended: float
) -> list[Finding]:
    """Return the findings about the ranks of a trial.

    Args:
        seen: result of `try_ranks`.
        where: description of the nodes.
        ranks: requested ranks.
        cpus: requested CPUs per rank.
        began: time of submission, by this machine's clock.
        ended: time of the answer, by this machine's clock.
    """
    findings, hosts = [], sorted({row["host"] for row in seen})
    if len(seen) != ranks or any(row["size"] != ranks for row in seen):
        text = (
            f"{len(seen)} rank(s) answered in worlds of {sorted({row['size'] for row in seen})}, {ranks} were started"
        )
        fix = "launcher and MPI do not match: set machine.srun_mpi, or MPI4PY_LIBMPI to the site's library"
        findings.append(Finding(level="bad", topic=f"{where}: MPI", text=text, fix=fix))
    else:
        text = f"{ranks} rank(s) on {', '.join(hosts)} connected"
        findings.append(Finding(level="ok", topic=f"{where}: launcher and MPI", text=text))
    if not all(row["token_seen"] for row in seen):
        fix = "work in a folder that login node and compute nodes share"
        findings.append(
            Finding(level="bad", topic=f"{where}: files", text="a file written here is not visible there", fix=fix)
        )
    else:
        findings.append(Finding(level="ok", topic=f"{where}: files", text="this folder is shared"))
    few = min(row["cpus"] for row in seen)
    if few < cpus:
        text = f"a rank may use {few} CPU(s), {cpus} were requested"
        fix = "see the partition's settings (task/cgroup, task/affinity), or lower machine.cpus_per_rank"
        findings.append(Finding(level="warn", topic=f"{where}: cores", text=text, fix=fix))
    else:
        findings.append(
            Finding(level="ok", topic=f"{where}: cores", text=f"a rank may use {few} CPUs, {cpus} requested")
        )
    off = max(max(began - row["time"], row["time"] - ended) for row in seen)
    level, text = (
        ("warn", f"a clock differs by {off:.0f} s from this machine's")
        if off > CLOCK_SECONDS
        else ("ok", "clocks agree")
    )
    fix = "ask the administrator for NTP: deadlines of jobs depend on the clock" if level == "warn" else ""
    findings.append(Finding(level="warn" if level == "warn" else "ok", topic=f"{where}: clock", text=text, fix=fix))
    pages = sorted({str(row["huge_pages"]) for row in seen})
    fine = set(pages) <= {"always", "madvise"}
    fix = "" if fine else "ask the administrator for `madvise` in /sys/kernel/mm/transparent_hugepage/enabled"
    text = f"transparent huge pages: {', '.join(pages)}"
    return [*findings, Finding(level="ok" if fine else "warn", topic=f"{where}: huge pages", text=text, fix=fix)]
