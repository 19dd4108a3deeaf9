"""Properties and limits of a Slurm cluster: partitions, nodes, accounting, MPI plugins."""

import re
import shutil
import socket
from collections.abc import Collection
from dataclasses import dataclass

from dithc.engine.scheduler.subprocesses import query

MINUTES_A_DAY = 1440
SLURMD_PORT = 6818  # the default of Slurm
UNAVAILABLE = ("DOWN", "FAIL", "NOT_RESPONDING", "*")


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Equal nodes of a partition; `cpus` and `memory_mb` are allocatable, `is_up` if any node accepts jobs."""

    names: tuple[str, ...]
    cpus: int
    memory_mb: int
    sockets: int
    is_up: bool


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A Slurm partition with its limits per job (memory on a node), and groups of equal nodes, the largest first."""

    name: str
    is_default: bool
    is_up: bool
    max_walltime_minutes: int | None
    max_nodes: int | None
    max_memory_mb: int | None
    kinds: tuple[NodeKind, ...]


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """A Slurm cluster: its visible partitions, the time that a finished job stays in the queue, `srun --mpi=` interfaces."""

    version: str
    partitions: tuple[Partition, ...]
    accounting: bool
    min_job_age_seconds: int
    mpi: tuple[str, ...]
    job_requeue: bool

    def partition(self, name: str | None) -> Partition | None:
        """Return a partition by name; by default the default partition, else the first that is up."""
        if name is not None:
            return next((partition for partition in self.partitions if partition.name == name), None)
        up = [partition for partition in self.partitions if partition.is_up and partition.kinds]
        return next((partition for partition in up if partition.is_default), up[0] if up else None)


def probe_site() -> SlurmSite | None:
    """Query Slurm; None if it is missing or does not reply."""
    if shutil.which("sbatch") is None or shutil.which("scontrol") is None:
        return None
    config, partitions = query(["scontrol", "show", "config"]), query(["scontrol", "show", "partition", "-o"])
    nodes = query(["scontrol", "show", "node", "-o"])
    if config is None or partitions is None or nodes is None:
        return None
    has_records = "accounting_storage/none" not in value(config, "AccountingStorageType").lower()
    mpi, accounting = query(["srun", "--mpi=list"]) or "", has_records and accounting_replies()
    return read_site(config, partitions, nodes, mpi=mpi, accounting=accounting)


def accounting_replies() -> bool:
    return query(["sacct", "-n", "-X", "--starttime", "now"], limit_seconds=20.0) is not None


def read_site(config: str, partitions: str, nodes: str, *, mpi: str, accounting: bool) -> SlurmSite:
    """Parse a site from the output of `scontrol show config`, `... partition -o`, `... node -o` and `srun --mpi=list`."""
    age = re.match(r"\d+", value(config, "MinJobAge"))
    return SlurmSite(
        version=value(config, "SLURM_VERSION"),
        partitions=tuple(_partition(line, nodes) for line in partitions.splitlines() if "PartitionName=" in line),
        accounting=accounting,
        min_job_age_seconds=int(age.group()) if age else 0,
        mpi=tuple(dict.fromkeys(re.findall(r"\b(pmi2|pmix(?:_v\d+)?|cray_shasta|none)\b", mpi))),
        job_requeue=value(config, "JobRequeue") != "0",
    )


def nodes_of(job_id: str) -> list[str]:
    """Return the names of a job's nodes in Slurm's order; empty without nodes or a reply."""
    nodes = (query(["squeue", "--noheader", "--jobs", job_id, "--format=%N"]) or "").strip()
    return (query(["scontrol", "show", "hostnames", nodes]) or "").split() if nodes else []


def lost(nodes: Collection[str]) -> list[str]:
    """Return the nodes that are down or do not reply. Slurm itself reports them only after minutes."""
    return [name for name in nodes if not _is_up(query(["scontrol", "show", "node", "-o", name]) or "")]


def _is_up(text: str) -> bool:
    """Return whether a node is up, by Slurm's state and a connection to its daemon; True without a state."""
    state, address = value(text, "State"), value(text, "NodeAddr")
    if not state or not address:
        return True
    if any(flag in state.upper() for flag in UNAVAILABLE):
        return False
    port = value(text, "Port") or value(query(["scontrol", "show", "config"]) or "", "SlurmdPort")
    try:
        socket.create_connection((address, int(port) if port.isdigit() else SLURMD_PORT), timeout=5).close()
    except OSError:
        return False
    return True


def value(text: str, key: str) -> str:
    """Return the value of `key=value` or `key = value`, or an empty string."""
    match = re.search(rf"(?:^|\s){re.escape(key)}\s*=\s*(\S+)", text)
    return match.group(1) if match else ""


def minutes_of(text: str) -> int | None:
    """Convert Slurm's `days-hours:minutes:seconds` to minutes; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return days * MINUTES_A_DAY + 60 * hours + minutes


def _partition(line: str, nodes: str) -> Partition:
    name = value(line, "PartitionName")
    limit = value(line, "MaxMemPerNode")
    node_limit = value(line, "MaxNodes")
    return Partition(
        name=name,
        is_default=value(line, "Default") == "YES",
        is_up=value(line, "State") == "UP",
        max_walltime_minutes=minutes_of(value(line, "MaxTime")),
        max_nodes=int(node_limit) if node_limit.isdigit() else None,
        max_memory_mb=int(limit) if limit.isdigit() else None,
        kinds=_kinds(name, nodes),
    )


def _kinds(partition: str, nodes: str) -> tuple[NodeKind, ...]:
    """Return groups of equal nodes, the largest first; nodes that accept jobs are first in a group."""
    groups: dict[tuple[int, ...], list[tuple[bool, str]]] = {}
    for line in nodes.splitlines():
        if partition in value(line, "Partitions").split(","):
            usable = value(line, "CPUEfctv") or value(line, "CPUTot")
            sizes = (usable, value(line, "RealMemory"), value(line, "Sockets"))
            state = value(line, "State").upper()
            is_away = any(flag in state for flag in (*UNAVAILABLE, "DRAIN", "UNKNOWN"))
            size = tuple(int(text) if text.isdigit() else 1 for text in sizes)
            groups.setdefault(size, []).append((is_away, value(line, "NodeName")))
    kinds = []
    for (cpus, memory, sockets), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        names = tuple(name for _, name in sorted(members, key=lambda member: member[0]))
        is_up = not all(is_away for is_away, _ in members)
        kinds.append(NodeKind(names=names, cpus=cpus, memory_mb=memory, sockets=sockets, is_up=is_up))
    return tuple(kinds)
