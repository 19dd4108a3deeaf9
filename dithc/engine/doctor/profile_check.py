"""Test of a profile on the present cluster: its limits compared with Slurm's, and a job on every type of node."""

import time
from statistics import median
from typing import Any

from dithc.config import MachineConfig, load_machine
from dithc.core.logging import user_error
from dithc.core.units import GIGA
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.doctor.profile_writer import try_ranks
from dithc.engine.doctor.profiles import profile_folder
from dithc.engine.scheduler import slurm_site

CLOCK_SECONDS = 5.0
SLOW_RATE, SLOW_LINK = 0.85, 0.7  # of the median over ranks, and over pairs of nodes, below which one is slow


def check_profile(name: str, site: slurm_site.SlurmSite | None) -> list[CheckResult]:
    """Return all findings about a profile, by its folder or its name in `profiles/`; UserError if it is unreadable."""
    folder = profile_folder(name)
    machine, content = load_machine(folder)
    if content.get("executor") != "slurm":
        text = f"{folder} uses {content.get('executor') or 'this machine'}: only profiles for Slurm are tested by jobs"
        return [CheckResult("ok", "profile", text)]
    if site is None:
        fix = "rerun on the cluster's login node"
        return [CheckResult("error", "Slurm", "no working Slurm commands (sbatch, scontrol)", fix=fix)]
    resources = content.get("default-resources") or {}
    partition = site.partition(resources.get("slurm_partition"))
    findings = [*_scheduler(content, machine, site), *_limits(machine, partition, resources.get("slurm_partition"))]
    if partition is None or any(finding.level == "error" for finding in findings):
        return findings
    for kind in partition.kinds:
        if kind.is_up:
            findings += _run_trial(machine, partition, resources, nodes=1, node=kind.names[0])
        else:
            text = f"{', '.join(kind.names[:4])} ({kind.cpus} CPUs, {kind.memory_mb} MB) accept no jobs now"
            findings.append(CheckResult("warning", "nodes", text, fix="run `sinfo -R` for the reason"))
    if machine.nodes > 1:
        findings += _run_trial(machine, partition, resources, nodes=machine.nodes, node=None)
    return findings


def _scheduler(content: dict[str, Any], machine: MachineConfig, site: slurm_site.SlurmSite) -> list[CheckResult]:
    status, age = content.get("slurm-status-command", "sacct"), site.min_job_age_seconds
    if status == "sacct" and not site.accounting:
        text = "jobs are polled by sacct, but accounting does not work here: the workflow would wait forever"
        findings = [CheckResult("error", "accounting", text, fix="set slurm-status-command: squeue")]
    elif status == "squeue" and age < 3 * content.get("slurm-init-seconds-before-status-checks", 40):
        text = f"finished jobs leave squeue after {age} s (MinJobAge), and accounting does not work"
        findings = [CheckResult("error", "accounting", text, fix="use the profile `generic`, which needs neither")]
    else:
        findings = [CheckResult("ok", "accounting", f"jobs are polled by {status}")]
    if content.get("group-components"):
        text = "group-components: Slurm's plugin runs the jobs of a group one after the other, beyond their walltime"
        findings.append(CheckResult("error", "groups", text, fix="remove group-components from the profile"))
    if machine.scheduler != "slurm":
        fix = "set machine={scheduler: slurm, ...}: otherwise a training run that stopped at its walltime is not rerun"
        findings.append(CheckResult("error", "scheduler", f"machine.scheduler is {machine.scheduler}", fix=fix))
    if machine.launcher == "srun" and machine.srun_mpi not in ("auto", "hydra", *site.mpi):
        text = f"srun supports {', '.join(site.mpi) or 'no process management interface'}, not {machine.srun_mpi}"
        findings.append(CheckResult("error", "srun", text, fix="set machine.srun_mpi to one of them, or remove it"))
    return findings


def _limits(machine: MachineConfig, partition: slurm_site.Partition | None, name: str | None) -> list[CheckResult]:
    if partition is None or not partition.kinds:
        fix = "set default-resources: slurm_partition to a partition in `sinfo`"
        return [CheckResult("error", "partition", f"partition {name!r} does not exist", fix=fix)]
    faults = [] if partition.is_up else [f"partition {partition.name} accepts no jobs"]
    for key, setting, largest in (
        ("cpus_per_node", machine.cpus_per_node, max(kind.cpus for kind in partition.kinds)),
        ("memory_per_node_mb", machine.memory_per_node_mb, max(kind.memory_mb for kind in partition.kinds)),
    ):
        if (setting or 0) > largest:
            faults.append(f"{key} {setting}: the largest node has {largest}")
    limit = partition.max_walltime_minutes
    if limit is not None and (machine.max_walltime_minutes is None or machine.max_walltime_minutes > limit):
        faults.append(
            f"max_walltime_minutes {machine.max_walltime_minutes}: jobs of {partition.name} end after {limit}"
        )
    if machine.nodes > (partition.max_nodes or machine.nodes):
        faults.append(f"nodes {machine.nodes}: a job of {partition.name} has at most {partition.max_nodes}")
    if faults:
        fix = "correct `machine` in the profile, or rewrite it: dithc doctor --write-profile"
        return [CheckResult("error", "limits", "\n".join(faults), fix=fix)]
    text = f"partition {partition.name} matches `machine`: {machine.cpus_per_node} CPUs, {machine.memory_per_node_mb} MB per node"
    return [CheckResult("ok", "limits", text)]


def measured_bandwidth(name: str) -> float:
    """Return bytes per second between two nodes of a profile, from a short job; UserError if it fails."""
    machine, content = load_machine(profile_folder(name))
    resources, site = content.get("default-resources") or {}, slurm_site.probe_site()
    partition = None if site is None else site.partition(resources.get("slurm_partition"))
    settings: dict[str, Any] = {"launcher": machine.launcher, "srun_mpi": machine.srun_mpi}
    settings["account"] = resources.get("slurm_account")
    rows: list[dict[str, Any]] = []
    error = "no working Slurm commands, or the partition does not exist"
    if partition is not None:
        rows, error = try_ranks(partition.name, nodes=2, ranks=2, cpus=machine.cpus_per_node or 1, **settings)
    rates = [float(rate) for row in rows for rate in row["links"].values()]
    if rows and not rates:
        error = f"{' and '.join(sorted({row['host'] for row in rows}))} are one machine"
    if not rates:
        fix = f"run `dithc doctor --profile {name}`, or pass --link-bandwidth"
        raise user_error("bandwidth between two nodes", got=error, expected="a job on two nodes", fix=fix)
    return min(rates) * GIGA


def _run_trial(
    machine: MachineConfig, partition: slurm_site.Partition, resources: dict[str, Any], *, nodes: int, node: str | None
) -> list[CheckResult]:
    per_node, cpus = machine.launched_per_node or 1, machine.cpus_per_rank or 1
    began = time.time()
    rows, error = try_ranks(
        partition.name,
        nodes=nodes,
        ranks=nodes * per_node,
        cpus=cpus,
        launcher=machine.launcher if nodes * per_node > 1 else "none",
        srun_mpi=machine.srun_mpi,
        node=node,
        account=resources.get("slurm_account"),
    )
    location = f"{nodes} nodes" if node is None else f"node {node}"
    if not rows:
        fix = "read its output; if the job is only waiting, retry later"
        return [CheckResult("error", location, f"the job failed: {error}", fix=fix)]
    return check_ranks(rows, location=location, ranks=nodes * per_node, cpus=cpus, began=began, ended=time.time())


def check_ranks(
    rows: list[dict[str, Any]], *, location: str, ranks: int, cpus: int, began: float, ended: float
) -> list[CheckResult]:
    """Return the findings about the properties of the ranks of a trial between two times of this machine's clock."""
    sizes, hosts = {row["size"] for row in rows}, {row["host"] for row in rows}
    fewest_cpus, pages = min(row["cpus"] for row in rows), {str(row["huge_pages"]) for row in rows}
    clock_error = max(max(began - row["time"], row["time"] - ended) for row in rows)
    findings: list[CheckResult] = []

    def check(topic: str, is_ok: bool, text: str, fix: str, *, level: Level = "warning") -> None:
        findings.append(CheckResult("ok" if is_ok else level, f"{location}: {topic}", text, fix="" if is_ok else fix))

    is_met = len(rows) == ranks and sizes == {ranks}
    text = f"{len(rows)} rank(s) answered in worlds of {sorted(sizes)}, {ranks} were started"
    text = f"{ranks} rank(s) on {', '.join(sorted(hosts))} connected" if is_met else text
    fix = "launcher and MPI do not match: set machine.srun_mpi, or MPI4PY_LIBMPI to the site's library"
    check("launcher and MPI" if is_met else "MPI", is_met, text, fix, level="error")
    is_shared = all(row["token_seen"] for row in rows)
    text = "this folder is shared" if is_shared else "a file written here is not visible there"
    check("files", is_shared, text, "work in a folder that login node and compute nodes share", level="error")
    fix = "see the partition's settings (task/cgroup, task/affinity), or lower machine.cpus_per_rank"
    check("cores", fewest_cpus >= cpus, f"a rank may use {fewest_cpus} CPU(s), {cpus} were requested", fix)
    is_close = clock_error <= CLOCK_SECONDS
    text = "clocks agree" if is_close else f"a clock differs by {clock_error:.0f} s from this machine's"
    check("clock", is_close, text, "ask the administrator for NTP: deadlines of jobs depend on the clock")
    fix = "ask the administrator for `madvise` in /sys/kernel/mm/transparent_hugepage/enabled"
    text = f"transparent huge pages: {', '.join(sorted(pages))}"
    check("huge pages", pages <= {"always", "madvise"}, text, fix)
    for key, topic, unit in (("product_gflops", "products", "GFLOP/s"), ("copy_gbs", "copies", "GB/s")):
        slow, middle = _slow_nodes(rows, key)
        text = f"{middle:.3g} {unit} per rank" + "".join(f"; {host}: {rate:.3g}" for host, rate in slow.items())
        check(
            topic, not slow, text, "every step waits for the slowest rank: exclude these nodes, or have them repaired"
        )
    if pairs := _pairs(rows):
        middle = median(pairs.values())
        slow_pairs = {names: rate for names, rate in pairs.items() if rate < SLOW_LINK * middle}
        text = f"{middle:.3g} GB/s between {len(pairs)} pair(s) of nodes"
        text += "".join(f"; {' - '.join(names)}: {rate:.3g}" for names, rate in slow_pairs.items())
        common = [
            host for host in hosts if len(hosts) > 2 and sum(host in names for names in slow_pairs) == len(hosts) - 1
        ]
        text += f"; all slow pairs include {', '.join(common)}" if common else ""
        check("links", not slow_pairs, text, "exclude these nodes, or have their network checked")
    return findings


def _slow_nodes(rows: list[dict[str, Any]], key: str) -> tuple[dict[str, float], float]:
    """Return the lowest rate of each slow node, and the median over all ranks."""
    middle = median(row[key] for row in rows)
    slow: dict[str, float] = {}
    for row in rows:
        if row[key] < SLOW_RATE * middle:
            slow[row["host"]] = min(row[key], slow.get(row["host"], row[key]))
    return slow, middle


def _pairs(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return GB/s of each pair of nodes, the lower one of both ends."""
    host = {row["rank"]: row["host"] for row in rows}
    pairs: dict[tuple[str, str], float] = {}
    for row in rows:
        for peer, rate in row["links"].items():
            first, second = sorted((row["host"], host[int(peer)]))
            pairs[first, second] = min(rate, pairs.get((first, second), rate))
    return pairs
