"""Description of one node, as immutable data and in a few lines of text."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dithc.core.units import GIB, GIGA
from dithc.engine.hardware.cpu_lists import compact_cpus
from dithc.engine.hardware.limits import Count, Cpus, Limits, Positive

MANY_NODES = 8
TierKind = Literal["ddr", "on-package", "expander"]


@dataclass(frozen=True, kw_only=True)
class Core:
    """Physical core; `cpus` are its logical CPUs, several with simultaneous multithreading."""

    index: int
    cpus: tuple[int, ...]
    cluster: int
    die: int
    socket: int
    node: int | None


@dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """Cores that share near memory or a cache; `cores` are indices into `Machine.cores`."""

    index: int
    die: int
    node: int | None
    cores: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """NUMA node. Without CPUs it is memory only: on-package memory in flat mode, or an expander.

    Attributes:
        index: number in the kernel.
        distances: the kernel's relative distances to every node, in the order of `Machine.nodes`; 10 to itself.
        read_bandwidth, write_bandwidth: bytes per second for the nearest CPUs, from the firmware (HMAT).
        read_latency_ns, write_latency_ns: latencies, from the same source; None if not specified.
        huge_page_pools: (page bytes, reserved pages, free pages) of this node.
    """

    index: Count
    cpus: Cpus
    memory_bytes: Count
    distances: tuple[Count, ...]
    read_bandwidth: Count | None = None
    write_bandwidth: Count | None = None
    read_latency_ns: Count | None = None
    write_latency_ns: Count | None = None
    huge_page_pools: tuple[tuple[Count, Count, Count], ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryTier:
    """Memory of one type; `nodes` are the kernel's numbers of its NUMA nodes, `reason` explains the type."""

    kind: TierKind
    nodes: tuple[Count, ...]
    memory_bytes: Count
    reason: str = "as described"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One type of cache of the machine, with its count and the number of logical CPUs that share one."""

    level: Count
    kind: str
    size_bytes: Count
    line_bytes: Count
    cpus_per_cache: Count
    count: Count


@dataclass(frozen=True, kw_only=True)
class HugePages:
    """Huge pages. `transparent`: always, madvise, never, absent; `pools`: (page bytes, reserved pages, free pages)."""

    transparent: str
    pools: tuple[tuple[Count, Count, Count], ...]


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Links between the ranks of a node and between nodes: LogGP of a card, and rates of one communication core.

    Attributes:
        source: sources of the numbers.
        cards_per_node: network cards, shared evenly by the ranks of a node.
        bandwidth: bytes per second of a card in each direction, 1/G.
        latency_ns: L, from card to card.
        overhead_ns: o, of a core for sending or receiving a message.
        gap_ns: g, between two messages of a card.
        core_bandwidth: bytes per second that one communication core exchanges with the network and sums.
        memory_bandwidth: bytes per second that one communication core copies or sums in shared memory of the node.
        memory_latency_ns: time until a write of one core is visible to another core of the node.
        rank_memory_bandwidth: the same for all cores of a rank together; None for the rate of one core.
    """

    source: str
    cards_per_node: Annotated[int, Field(strict=True, ge=1)]
    bandwidth: Positive
    latency_ns: Count
    overhead_ns: Count
    gap_ns: Count
    core_bandwidth: Positive
    memory_bandwidth: Positive
    memory_latency_ns: Count
    rank_memory_bandwidth: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node as reported by the operating system. Cores are ordered by socket, die, core cluster, first logical CPU.

    Sockets, dies, cores and caches are counted if they have an online CPU.

    Attributes:
        architecture: x86_64, aarch64.
        flags: instruction sets, in the kernel's notation.
        cluster_rule, die_rule: rules for grouping cores and core clusters.
        nodes: NUMA nodes; empty if the kernel reports none.
        memory_bytes: total over all nodes.
        limits: limits on this process.
        tiers: types of memory, DDR first.
        offline_cpus: logical CPUs that are present but offline.
        slower_cores: cores that the kernel marks as efficiency cores.
        described_by: file that replaces the present machine; empty for the machine itself.
        network: links between its ranks and to other nodes; None if not described.
    """

    model_name: str
    architecture: str
    flags: tuple[str, ...] = ()
    num_sockets: int = 0
    num_dies: int = 0
    clusters: tuple[SimulatedCluster, ...] = ()
    cluster_rule: str
    cores: tuple[Core, ...] = ()
    caches: tuple[Cache, ...] = ()
    nodes: tuple[NumaNode, ...] = ()
    memory_bytes: int = 0
    huge_pages: HugePages
    limits: Limits
    tiers: tuple[MemoryTier, ...] = ()
    die_rule: str = ""
    offline_cpus: tuple[int, ...] = ()
    slower_cores: tuple[int, ...] = ()
    described_by: str = ""
    network: Interconnect | None = None

    @property
    def visible_cores(self) -> tuple[Core, ...]:
        """Cores with at least one logical CPU that this process may use."""
        allowed = set(self.limits.allowed_cpus)
        return tuple(core for core in self.cores if allowed.intersection(core.cpus))

    def describe(self) -> str:
        """Describe processor, topology, caches, memory and limits in one or two lines each."""
        siblings = max((len(core.cpus) for core in self.cores), default=1)
        lines = [
            *([f"described by {self.described_by}, which replaces the present machine"] if self.described_by else []),
            f"{self.model_name} ({self.architecture})",
            f"{self.num_sockets} socket(s), {self.num_dies} die(s), {len(self.clusters)} cluster(s), "
            f"{len(self.cores)} core(s), {siblings} thread(s) per core",
            f"clusters: {self.cluster_rule}; dies: {self.die_rule or 'unspecified'}",
            f"caches: {_caches(self)}",
            f"memory: {self.memory_bytes / GIB:.1f} GiB; {_nodes(self)}",
        ]
        for tier in self.tiers if len(self.tiers) > 1 else ():
            size, nodes = f"{tier.memory_bytes / GIB:.1f} GiB", compact_cpus(tier.nodes)
            lines.append(f"tier {tier.kind}: {size} on node(s) {nodes}: {tier.reason}")
        lines.append(f"huge pages: transparent {self.huge_pages.transparent}; {_pools(self.huge_pages)}")
        lines.append(f"limits: {_limits(self)}")
        if self.slower_cores:
            lines.append(f"{len(self.slower_cores)} of the cores are efficiency cores, slower than the other cores")
        return "\n".join(lines)


def _caches(machine: Machine) -> str:
    parts = [
        f"L{cache.level}{'' if cache.kind == 'Unified' else cache.kind[0].lower()} {cache.size_bytes // 1024} KiB"
        f" x {cache.count} (each shared by {cache.cpus_per_cache} CPU)"
        for cache in machine.caches
    ]
    return ", ".join(parts) or "not reported"


def _nodes(machine: Machine) -> str:
    if not machine.nodes:
        return "the kernel reports no NUMA nodes"
    if len(machine.nodes) > MANY_NODES:
        with_cpus = sum(bool(node.cpus) for node in machine.nodes)
        return f"{with_cpus} NUMA node(s) with CPUs, {len(machine.nodes) - with_cpus} with memory only"
    texts = []
    for node in machine.nodes:
        text = f"node {node.index}: {node.memory_bytes / GIB:.1f} GiB{'' if node.cpus else ' (memory only)'}"
        text += f", distances {' '.join(map(str, node.distances))}"
        texts.append(text if node.read_bandwidth is None else f"{text}, {node.read_bandwidth / GIGA:.0f} GB/s by HMAT")
    return "; ".join(texts)


def _pools(huge_pages: HugePages) -> str:
    pools = (pool for pool in huge_pages.pools if pool[1])
    parts = [f"{reserved} of {size // 1024} KiB reserved, {free} free" for size, reserved, free in pools]
    return ", ".join(parts) or "no pages reserved"


def _limits(machine: Machine) -> str:
    limits = machine.limits
    num_cpus = sum(len(core.cpus) for core in machine.cores)
    parts = [f"{len(limits.allowed_cpus)} of {num_cpus} CPU(s) allowed"]
    if machine.offline_cpus:
        parts.append(f"{len(machine.offline_cpus)} CPU(s) are offline")
    if limits.cpu_quota is not None:
        parts.append(f"control group allows {limits.cpu_quota:g} CPU(s) of time")
    if limits.memory_limit_bytes is not None:
        parts.append(f"control group allows {limits.memory_limit_bytes / GIB:.1f} GiB")
    if limits.memory_available_bytes is not None:
        parts.append(f"{limits.memory_available_bytes / GIB:.1f} GiB still available")
    return ", ".join(parts)
