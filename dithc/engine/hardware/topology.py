"""Grouping of logical CPUs as cores, core clusters and dies, by pure rules on the kernel's topology of each CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dithc.engine.hardware.machine import Core, NumaNode, SimulatedCluster

# On this processor a ring places two core memory groups nearer to each other than to the other two, but all are one die.
ONE_DIE_PER_SOCKET = ("A64FX",)

WHOLE_DIE = "the entire die (no NUMA nodes inside it, no shared L3 or L2 reported)"


@dataclass(frozen=True, kw_only=True)
class CpuLocation:
    """Location of a logical CPU; None if the kernel does not report a key.

    The die is numbered inside its package. `siblings`, `l3`, `l2` and `neighbors` are the logical CPUs of its core, of its
    caches and of its cluster in the kernel's topology. `slower` marks an efficiency core.
    """

    socket: int
    die: int | None
    siblings: tuple[int, ...]
    node: int | None
    l3: tuple[int, ...] | None
    l2: tuple[int, ...] | None
    neighbors: tuple[int, ...] | None
    slower: bool


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Cores and core clusters in order, and the rules of the grouping."""

    cores: tuple[Core, ...]
    clusters: tuple[SimulatedCluster, ...]
    num_dies: int
    cluster_rule: str
    die_rule: str
    slower_cores: tuple[int, ...]


def group(locations: Mapping[int, CpuLocation], nodes: Sequence[NumaNode], *, model_name: str = "") -> Topology:
    """Number the dies, core clusters and cores of the online CPUs by the rules in the package docstring."""
    die_of, die_rule = _dies(locations, nodes, model_name)
    cores: list[Core] = []
    clusters: list[SimulatedCluster] = []
    rules: list[str] = []
    for die_index, die in enumerate(sorted(set(die_of.values()))):
        members = {cpu: place for cpu, place in locations.items() if die_of[cpu] == die}
        groups, rule = _clusters_of_die(members)
        rules.append(rule)
        for cpus in groups:
            first_core = len(cores)
            for siblings in sorted({tuple(c for c in members[cpu].siblings if c in members) or (cpu,) for cpu in cpus}):
                place = members[siblings[0]]
                parents = {"cluster": len(clusters), "die": die_index, "socket": place.socket}
                cores.append(Core(index=len(cores), cpus=siblings, node=place.node, **parents))
            indices, node = tuple(range(first_core, len(cores))), members[cpus[0]].node
            clusters.append(SimulatedCluster(index=len(clusters), die=die_index, node=node, cores=indices))
    return Topology(
        cores=tuple(cores),
        clusters=tuple(clusters),
        num_dies=len(set(die_of.values())),
        cluster_rule="; ".join(dict.fromkeys(rules)),
        die_rule=die_rule,
        slower_cores=tuple(core.index for core in cores if locations[core.cpus[0]].slower),
    )


def _dies(
    locations: Mapping[int, CpuLocation], nodes: Sequence[NumaNode], model_name: str
) -> tuple[dict[int, tuple[int, int]], str]:
    """Return (socket, die within it) of each CPU, and the rule.

    Kernels on Arm report no dies. Newer kernels on AMD report each chiplet of cores as a die, whereas a die of the
    paper shares memory. Therefore chiplets of one NUMA node count as one die, and without die numbers the distances
    between nodes decide.
    """
    by_kernel = {cpu: (place.socket, place.die or 0) for cpu, place in locations.items()}
    if any(place.die is not None for place in locations.values()):
        for node in nodes:
            if len({by_kernel[cpu] for cpu in node.cpus if cpu in locations}) > 1:
                rule = "one per socket (the kernel's dies share NUMA nodes: chiplets of cores)"
                return {cpu: (place.socket, 0) for cpu, place in locations.items()}, rule
        return by_kernel, "as numbered by the kernel"
    if model_name in ONE_DIE_PER_SOCKET:
        return by_kernel, "one per socket (rule for this processor)"
    die_of_node = _dies_by_distance(locations, nodes)
    if not die_of_node:
        return by_kernel, "one per socket (the kernel reports no dies)"
    return {cpu: (place.socket, die_of_node[place.node or 0]) for cpu, place in locations.items()}, (
        "NUMA nodes of a socket that are nearer to each other than to its other nodes (the kernel reports no dies)"
    )


def _dies_by_distance(locations: Mapping[int, CpuLocation], nodes: Sequence[NumaNode]) -> dict[int, int]:
    """Return each NUMA node's die within its socket; empty unless distances split each socket into equal groups."""
    if any(place.node is None for place in locations.values()):
        return {}
    position = {node.index: number for number, node in enumerate(nodes)}
    socket_of = {place.node: place.socket for place in locations.values() if place.node is not None}
    dies: dict[int, int] = {}
    for socket in sorted(set(socket_of.values())):
        members = sorted(node for node in socket_of if socket_of[node] == socket)
        rows = {node: nodes[position[node]].distances for node in members}
        if any(len(row) != len(nodes) for row in rows.values()):
            return {}
        distances = [rows[a][position[b]] for a in members for b in members if a != b]
        near = min(distances, default=0)
        groups = {tuple(b for b in members if a == b or rows[a][position[b]] <= near) for a in members}
        are_disjoint = sum(map(len, groups)) == len(members)
        sizes = {len(nodes_of_die) for nodes_of_die in groups}
        if not are_disjoint or len(groups) < 2 or len(sizes) > 1 or min(sizes) < 2:
            return {}
        dies |= {node: die for die, nodes_of_die in enumerate(sorted(groups)) for node in nodes_of_die}
    return dies


def _clusters_of_die(members: Mapping[int, CpuLocation]) -> tuple[list[tuple[int, ...]], str]:
    nodes = {place.node for place in members.values()}
    if len(nodes) > 1 and None not in nodes:
        return _split({cpu: (place.node or 0,) for cpu, place in members.items()}), "one per NUMA node"
    if any(place.l3 for place in members.values()):
        # Some laptops have low-power cores outside the L3, which are grouped by their L2.
        has_l2_only = any(not place.l3 for place in members.values())
        rule = f"cores sharing an L3 cache{', or an L2 without L3' if has_l2_only else ''}"
        return _split({cpu: place.l3 or place.l2 or () for cpu, place in members.items()}), rule
    for rule, keys in (
        ("cores sharing an L2 cache", {cpu: place.l2 for cpu, place in members.items()}),
        ("the kernel's cluster", {cpu: place.neighbors for cpu, place in members.items() if not place.l2}),
    ):
        shared = {cpu: key for cpu, key in keys.items() if key}
        if len(shared) == len(members) and any(set(key) - set(members[cpu].siblings) for cpu, key in shared.items()):
            return _split(shared), rule
    return [tuple(sorted(members))], WHOLE_DIE


def _split(keys: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(cpu for cpu in sorted(keys) if keys[cpu] == key) for key in sorted(set(keys.values()))]
