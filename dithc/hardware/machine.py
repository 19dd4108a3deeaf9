"""Description of one node, as immutable data and in a few lines of text."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dithc.hardware.cpu_lists import compact_cpus
from dithc.hardware.limits import Limits

GIB = 1 << 30
GIGA = 1e9
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
class Cluster:
    """Cores that share near memory or a cache; `cores` are indices into `Machine.cores`."""

    index: int
    die: int
    node: int | None
    cores: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """NUMA node. Without CPUs it is memory only: on-package memory in flat mode, or an expander.

    Attributes:
        index: number in the kernel.
        cpus: its logical CPUs, empty for memory only.
        memory_bytes: its total memory.
        distances: the kernel's relative distances to every node, in the order of `Machine.nodes`; 10 to itself.
        read_bandwidth: bytes per second for the nearest CPUs, from the firmware (HMAT); None if not specified.
        write_bandwidth: the same for writing.
        read_latency_ns: nanoseconds, as above.
        write_latency_ns: the same for writing.
        huge_page_pools: (page bytes, reserved pages, free pages) of this node.
    """

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int
    distances: tuple[int, ...]
    read_bandwidth: int | None = None
    write_bandwidth: int | None = None
    read_latency_ns: int | None = None
    write_latency_ns: int | None = None
    huge_page_pools: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Memory of one type; `nodes` are the kernel's numbers of its NUMA nodes, `reason` explains the type."""

    kind: TierKind
    nodes: tuple[int, ...]
    memory_bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One type of cache of the machine, with its count and the number of logical CPUs that share one."""

    level: int
    kind: str
    size_bytes: int
    line_bytes: int
    cpus_per_cache: int
    count: int


@dataclass(frozen=True, kw_only=True)
class HugePages:
    """Huge pages. `transparent`: always, madvise, never, absent; `pools`: (page bytes, reserved pages, free pages)."""

    transparent: str
    pools: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links between the ranks of a node and between nodes: LogGP of a card, and rates of one communication core. Only
    described.

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
        rank_memory_bandwidth: bytes per second that all cores of a rank copy in shared memory; None for the rate of one
            core.
    """

    source: str
    cards_per_node: int
    bandwidth: float
    latency_ns: int
    overhead_ns: int
    gap_ns: int
    core_bandwidth: float
    memory_bandwidth: float
    memory_latency_ns: int
    rank_memory_bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node as reported by the operating system. Cores are ordered by socket, die, core cluster, first logical CPU.

    Attributes:
        model_name: model of the processor.
        architecture: x86_64, aarch64.
        flags: instruction sets, in the kernel's notation.
        num_sockets: packages with an online CPU.
        num_dies: dies with an online CPU.
        clusters: core clusters, in the order of their cores.
        cluster_rule: rule for grouping cores.
        cores: cores with an online CPU.
        caches: caches of online CPUs.
        nodes: NUMA nodes; empty if the kernel reports none.
        memory_bytes: total over all nodes.
        huge_pages: huge pages of the machine.
        limits: limits on this process.
        tiers: types of memory, DDR first.
        die_rule: rule for grouping core clusters.
        offline_cpus: logical CPUs that are present but offline.
        slower_cores: cores that the kernel marks as efficiency cores.
        described_by: file that replaces the present machine; empty for the machine itself.
        network: links between its ranks and to other nodes; None if not described.
    """

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
    tiers: tuple[Tier, ...] = ()
    die_rule: str = ""
    offline_cpus: tuple[int, ...] = ()
    slower_cores: tuple[int, ...] = ()
    described_by: str = ""
    network: Network | None = None

    @property
    def visible_cores(self) -> tuple[Core, ...]:
        """Cores with at least one logical CPU that this process may use."""
        allowed = set(self.limits.allowed_cpus)
        return tuple(core for core in self.cores if allowed.intersection(core.cpus))

    @property
    def memory_only_nodes(self) -> tuple[Node, ...]:
        """NUMA nodes with memory but without CPUs."""
        return tuple(node for node in self.nodes if not node.cpus and node.memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the same facts as plain lists and numbers for JSON."""
        return asdict(self)

    def describe(self) -> str:
        """Describe the machine in a few lines of text."""
        return _words(self)


def _words(machine: Machine) -> str:
    """Describe processor, topology, caches, memory and limits in one or two lines each."""
    siblings = max((len(core.cpus) for core in machine.cores), default=1)
    lines = [
        f"{machine.model_name} ({machine.architecture})",
        f"{machine.num_sockets} socket(s), {machine.num_dies} die(s), {len(machine.clusters)} cluster(s), "
        f"{len(machine.cores)} core(s), {siblings} thread(s) per core",
        f"clusters: {machine.cluster_rule}; dies: {machine.die_rule or 'unspecified'}",
        f"caches: {_caches(machine)}",
        f"memory: {machine.memory_bytes / GIB:.1f} GiB; {_nodes(machine)}",
        *(_tiers(machine) if len(machine.tiers) > 1 else ()),
        f"huge pages: transparent {machine.huge_pages.transparent}; {_pools(machine.huge_pages)}",
        f"limits: {_limits(machine)}",
    ]
    if machine.slower_cores:
        lines.append(f"{len(machine.slower_cores)} of the cores are efficiency cores, slower than the other cores")
    if machine.described_by:
        lines.insert(0, f"described by {machine.described_by}, which replaces the present machine")
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
    return "; ".join(_node(node) for node in machine.nodes)


def _node(node: Node) -> str:
    text = f"node {node.index}: {node.memory_bytes / GIB:.1f} GiB"
    text += f"{'' if node.cpus else ' (memory only)'}, distances {' '.join(map(str, node.distances))}"
    return text if node.read_bandwidth is None else f"{text}, {node.read_bandwidth / GIGA:.0f} GB/s by HMAT"


def _tiers(machine: Machine) -> list[str]:
    return [
        f"tier {tier.kind}: {tier.memory_bytes / GIB:.1f} GiB on node(s) {compact_cpus(tier.nodes)}: {tier.reason}"
        for tier in machine.tiers
    ]


def _pools(huge_pages: HugePages) -> str:
    parts = [
        f"{reserved} of {size // 1024} KiB reserved, {free} free"
        for size, reserved, free in huge_pages.pools
        if reserved
    ]
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
