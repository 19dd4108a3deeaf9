"""Rule for the memory types of a machine from its NUMA nodes, with the reasons."""

from collections.abc import Sequence

from dithc.engine.hardware.machine import MemoryTier, NumaNode, TierKind

KINDS: tuple[TierKind, ...] = ("ddr", "on-package", "expander")
# The only machine without CPU-less nodes that has only on-package memory: 32 GiB of HBM2, no DDR.
ALL_ON_PACKAGE = {"A64FX": "A64FX has on-package memory only"}


def tiers_of(nodes: Sequence[NumaNode], *, model_name: str = "") -> tuple[MemoryTier, ...]:
    """Return the memory tiers of a machine, DDR first.

    A node with CPUs is DDR. A memory-only node is compared with its nearest node with CPUs. If the firmware
    specifies bandwidths (HMAT) for both, it is on-package if its bandwidth is higher, else an expander. Otherwise it is
    on-package if it is smaller than that node and no farther from it than the nodes of other sockets.
    """
    groups: dict[tuple[TierKind, str], list[NumaNode]] = {}
    for node in nodes:
        if node.memory_bytes:
            groups.setdefault(_kind(node, nodes, model_name), []).append(node)
    return tuple(
        MemoryTier(
            kind=kind,
            nodes=tuple(node.index for node in members),
            memory_bytes=sum(node.memory_bytes for node in members),
            reason=reason,
        )
        for (kind, reason), members in sorted(groups.items(), key=lambda item: KINDS.index(item[0][0]))
    )


def _kind(node: NumaNode, nodes: Sequence[NumaNode], model_name: str) -> tuple[TierKind, str]:
    if node.cpus:
        if model_name in ALL_ON_PACKAGE:
            return "on-package", ALL_ON_PACKAGE[model_name]
        return "ddr", "memory of nodes with CPUs"
    cpu_nodes = [other for other in nodes if other.cpus]
    if not cpu_nodes:
        return "expander", "memory without CPUs, on a machine with no CPUs in any node"
    nearest = min(cpu_nodes, key=lambda other: _distance(other, node, nodes))
    if node.read_bandwidth is not None and nearest.read_bandwidth is not None:
        if node.read_bandwidth > nearest.read_bandwidth:
            return "on-package", "no CPUs, and a higher bandwidth (HMAT) than the nearest node with CPUs"
        return "expander", "no CPUs, and no higher bandwidth (HMAT) than the nearest node with CPUs"
    if node.memory_bytes >= nearest.memory_bytes:
        return "expander", "no CPUs, no bandwidth from HMAT, and not smaller than the nearest node with CPUs"
    farthest = max((_distance(nearest, other, nodes) for other in cpu_nodes if other is not nearest), default=None)
    if farthest is not None and _distance(nearest, node, nodes) > farthest:
        return "expander", "no CPUs, no bandwidth from HMAT, and farther away than any node with CPUs"
    return "on-package", "no CPUs, no bandwidth from HMAT, small, and near to a node with CPUs"


def _distance(origin: NumaNode, node: NumaNode, nodes: Sequence[NumaNode]) -> int:
    """Return the distance between two nodes, 0 if unknown. Distances follow node positions, as node numbers may have
    gaps.
    """
    position = list(nodes).index(node)
    return origin.distances[position] if position < len(origin.distances) else 0
