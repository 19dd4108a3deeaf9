"""The description of one node: what it has, as plain immutable data, and as text for a person."""

from dataclasses import asdict, dataclass
from typing import Any

from dithc.hardware.limits import Limits

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Core:
    """A physical core; `cpus` are its logical CPUs (more than one with simultaneous multithreading)."""

    index: int
    cpus: tuple[int, ...]
    cluster: int
    die: int
    socket: int
    node: int | None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cores that share a near memory or a cache; `cores` are indices into `Machine.cores`."""

    index: int
    die: int
    node: int | None
    cores: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A NUMA node. Without CPUs it is memory only: on-package memory in flat mode, or an expander."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One kind of cache of the machine: how many there are, and how many logical CPUs share one."""

    level: int
    kind: str
    size_bytes: int
    line_bytes: int
    cpus_per_cache: int
    count: int


@dataclass(frozen=True, kw_only=True)
class HugePages:
    """`transparent`: always, madvise, never, or absent; `pools`: (page bytes, reserved pages, free pages)."""

    transparent: str
    pools: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node as the operating system shows it. Cores are ordered by socket, die, cluster, first logical CPU."""

    model_name: str
    architecture: str
    flags: tuple[str, ...]
    num_sockets: int
    num_dies: int
    clusters: tuple[Cluster, ...]
    cluster_rule: str
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...]
    nodes: tuple[Node, ...]
    memory_bytes: int
    huge_pages: HugePages
    limits: Limits

    @property
    def visible_cores(self) -> tuple[Core, ...]:
        """Cores of which this process may use at least one logical CPU."""
        allowed = set(self.limits.allowed_cpus)
        return tuple(core for core in self.cores if allowed.intersection(core.cpus))

    @property
    def memory_only_nodes(self) -> tuple[Node, ...]:
        """NUMA nodes that hold memory but no CPU."""
        return tuple(node for node in self.nodes if not node.cpus and node.memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The same facts as plain lists and numbers, ready for JSON."""
        return asdict(self)


def describe(machine: Machine) -> str:
    """A few lines of text about the machine, for a person."""
    siblings = max((len(core.cpus) for core in machine.cores), default=1)
    lines = [
        f"{machine.model_name} ({machine.architecture})",
        f"{machine.num_sockets} socket(s), {machine.num_dies} die(s), {len(machine.clusters)} cluster(s), "
        f"{len(machine.cores)} core(s), {siblings} thread(s) per core",
        f"clusters: {machine.cluster_rule}",
        f"caches: {_caches_text(machine)}",
        f"memory: {machine.memory_bytes / GIB:.1f} GiB; {_nodes_text(machine)}",
        f"huge pages: transparent {machine.huge_pages.transparent}; {_pools_text(machine.huge_pages)}",
        f"limits: {_limits_text(machine)}",
    ]
    return "\n".join(lines)


def _caches_text(machine: Machine) -> str:
    parts = [
        f"L{cache.level}{'' if cache.kind == 'Unified' else cache.kind[0].lower()} {cache.size_bytes // 1024} KiB"
        f" x {cache.count} (each shared by {cache.cpus_per_cache} CPU)"
        for cache in machine.caches
    ]
    return ", ".join(parts) or "not reported"


def _nodes_text(machine: Machine) -> str:
    if not machine.nodes:
        return "the kernel reports no NUMA nodes"
    parts = [
        f"node {node.index}: {node.memory_bytes / GIB:.1f} GiB"
        f"{'' if node.cpus else ' (memory only)'}, distances {' '.join(map(str, node.distances))}"
        for node in machine.nodes
    ]
    return "; ".join(parts)


def _pools_text(huge_pages: HugePages) -> str:
    parts = [
        f"{reserved} of {size // 1024} KiB reserved, {free} free"
        for size, reserved, free in huge_pages.pools
        if reserved
    ]
    return ", ".join(parts) or "no pages reserved"


def _limits_text(machine: Machine) -> str:
    limits = machine.limits
    num_cpus = sum(len(core.cpus) for core in machine.cores)
    parts = [f"{len(limits.allowed_cpus)} of {num_cpus} CPU(s) allowed"]
    if limits.cpu_quota is not None:
        parts.append(f"control group allows {limits.cpu_quota:g} CPU(s) of time")
    if limits.memory_limit_bytes is not None:
        parts.append(f"control group allows {limits.memory_limit_bytes / GIB:.1f} GiB")
    if limits.memory_available_bytes is not None:
        parts.append(f"{limits.memory_available_bytes / GIB:.1f} GiB still available")
    return ", ".join(parts)
