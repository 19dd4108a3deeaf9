"""The description of one node: what it has, as plain immutable data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dithc.hardware.limits import Limits
from dithc.hardware.summary import words

TierKind = Literal["ddr", "on-package", "expander"]


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
    """A NUMA node. Without CPUs it is memory only: on-package memory in flat mode, or an expander.

    Attributes:
        index: the kernel's number.
        cpus: its logical CPUs, empty for memory only.
        memory_bytes: all of its memory.
        distances: the kernel's relative distances from this node to every node, in the order of `Machine.nodes`; 10 is its own.
        read_bandwidth: bytes a second that the firmware (HMAT) states for the nearest CPUs, None where it states none.
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
    """Memory of one kind; `nodes` are the kernel's numbers of its NUMA nodes, `reason` why it is taken for that kind."""

    kind: TierKind
    nodes: tuple[int, ...]
    memory_bytes: int
    reason: str


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
class Network:
    """What joins the ranks of a node and the nodes: LogGP of a card, and what one communication core does. Only ever described.

    Attributes:
        source: where each number comes from, in words.
        cards_per_node: network cards, shared evenly by the ranks of a node.
        bandwidth: bytes a second of a card in each direction, 1/G.
        latency_ns: L, from card to card.
        overhead_ns: o, of a core for sending or for receiving a message.
        gap_ns: g, between two messages of a card.
        core_bandwidth: bytes a second that one communication core hands to or takes from the network and sums.
        memory_bandwidth: bytes a second that one communication core copies or sums in memory shared within the node.
        memory_latency_ns: until another core of the node sees what one wrote.
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


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node as the operating system shows it. Cores are ordered by socket, die, cluster, first logical CPU.

    Attributes:
        model_name: of the processor.
        architecture: x86_64, aarch64.
        flags: instruction sets, as the kernel names them.
        num_sockets: packages with a CPU that is online.
        num_dies: dies with a CPU that is online.
        clusters: in the order of their cores.
        cluster_rule: by which cores were put together.
        cores: with at least one CPU online.
        caches: of the CPUs that are online.
        nodes: NUMA nodes; none where the kernel reports none.
        memory_bytes: of all nodes.
        huge_pages: of the whole machine.
        limits: what this process may use of it.
        tiers: kinds of memory, DDR first.
        die_rule: by which clusters were put together.
        offline_cpus: logical CPUs that are there and switched off.
        slower_cores: cores that the kernel marks as efficient rather than fast.
        described_by: the file that stands in for the machine that is here; empty for the machine itself.
        network: between its ranks and to other nodes; None where nobody described it.
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

    def describe(self) -> str:
        """A few lines of text, for a person."""
        return words(self)

    @classmethod
    def read(cls, path: str | Path) -> "Machine":
        """The machine that a YAML file describes; what the file does not say is empty or zero, and every CPU is allowed.

        Raises:
            UserError: the file cannot be read, has an unknown key, lacks one, or contradicts itself; the key is named.
        """
        from dithc.hardware.description import read_description

        return read_description(Path(path))

    def write(self, path: str | Path) -> None:
        """Writes the description that `read` reads; everything but `described_by`."""
        from dithc.hardware.description import write_description

        write_description(self, Path(path))
