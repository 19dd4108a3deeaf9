"""Puts logical CPUs together as cores, clusters and dies: pure rules over what the kernel says of each CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dithc.hardware.machine import Cluster, Core, Node

# Its ring makes two core memory groups nearer to each other than to the other two, but they are one die.
ONE_DIE_PER_SOCKET = ("Arm implementer 0x46 part 0x001",)

WHOLE_DIE = "the whole die (no NUMA nodes inside it, no shared L3 or L2 reported)"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a logical CPU sits: the keys that grouping needs; None is what the kernel does not say.

    Attributes:
        socket: package.
        die: number of the die inside its package.
        siblings: logical CPUs of its core.
        node: NUMA node.
        l3: logical CPUs that share its L3 cache.
        l2: logical CPUs that share its L2 cache.
        neighbours: logical CPUs of what the kernel calls its cluster.
        slower: marked as an efficient rather than a fast core.
    """

    socket: int
    die: int | None
    siblings: tuple[int, ...]
    node: int | None
    l3: tuple[int, ...] | None
    l2: tuple[int, ...] | None
    neighbours: tuple[int, ...] | None
    slower: bool


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Cores and clusters in order, the number of dies, and the rules that made them."""

    cores: tuple[Core, ...]
    clusters: tuple[Cluster, ...]
    num_dies: int
    cluster_rule: str
    die_rule: str
    slower_cores: tuple[int, ...]


def group(places: Mapping[int, Place], nodes: Sequence[Node], *, model_name: str = "") -> Topology:
    """Numbers dies, clusters and cores of the CPUs that are online; the rules are those in the room's docstring."""
    die_of, die_rule = _dies(places, nodes, model_name)
    cores: list[Core] = []
    clusters: list[Cluster] = []
    rules: list[str] = []
    for die_index, die in enumerate(sorted(set(die_of.values()))):
        members = {cpu: place for cpu, place in places.items() if die_of[cpu] == die}
        groups, rule = _clusters_of_die(members)
        rules.append(rule)
        for cpus in groups:
            first_core = len(cores)
            for siblings in sorted({tuple(c for c in members[cpu].siblings if c in members) or (cpu,) for cpu in cpus}):
                place = members[siblings[0]]
                cores.append(
                    Core(
                        index=len(cores),
                        cpus=siblings,
                        cluster=len(clusters),
                        die=die_index,
                        socket=place.socket,
                        node=place.node,
                    )
                )
            clusters.append(
                Cluster(
                    index=len(clusters),
                    die=die_index,
                    node=members[cpus[0]].node,
                    cores=tuple(range(first_core, len(cores))),
                )
            )
    return Topology(
        cores=tuple(cores),
        clusters=tuple(clusters),
        num_dies=len(set(die_of.values())),
        cluster_rule="; ".join(dict.fromkeys(rules)),
        die_rule=die_rule,
        slower_cores=tuple(core.index for core in cores if places[core.cpus[0]].slower),
    )


def _dies(
    places: Mapping[int, Place], nodes: Sequence[Node], model_name: str
) -> tuple[dict[int, tuple[int, int]], str]:
    """(socket, die in it) of each CPU, and the rule.

    Kernels on Arm know no dies, and newer ones on AMD report each chiplet of cores as one, though a die of the paper is what
    shares memory: so chiplets around one NUMA node count together, and without numbers the distances of the nodes decide.
    """
    by_kernel = {cpu: (place.socket, place.die or 0) for cpu, place in places.items()}
    if any(place.die is not None for place in places.values()):
        for node in nodes:
            if len({by_kernel[cpu] for cpu in node.cpus if cpu in places}) > 1:
                rule = "each socket one (the kernel's dies share NUMA nodes: chiplets of cores)"
                return {cpu: (place.socket, 0) for cpu, place in places.items()}, rule
        return by_kernel, "as the kernel numbers them"
    if model_name in ONE_DIE_PER_SOCKET:
        return by_kernel, "each socket one (known of this processor)"
    die_of_node = _dies_by_distance(places, nodes)
    if not die_of_node:
        return by_kernel, "each socket one (the kernel numbers no dies)"
    return {cpu: (place.socket, die_of_node[place.node or 0]) for cpu, place in places.items()}, (
        "NUMA nodes of a socket that are nearer to each other than to its others (the kernel numbers no dies)"
    )


def _dies_by_distance(places: Mapping[int, Place], nodes: Sequence[Node]) -> dict[int, int]:
    """Die of each NUMA node inside its socket; empty where distances do not part every socket into equal groups of several."""
    if any(place.node is None for place in places.values()):
        return {}
    position = {node.index: number for number, node in enumerate(nodes)}
    socket_of = {place.node: place.socket for place in places.values() if place.node is not None}
    found: dict[int, int] = {}
    for socket in sorted(set(socket_of.values())):
        members = sorted(node for node in socket_of if socket_of[node] == socket)
        rows = {node: nodes[position[node]].distances for node in members}
        if any(len(row) != len(nodes) for row in rows.values()):
            return {}
        others = [rows[one][position[two]] for one in members for two in members if one != two]
        near = min(others, default=0)
        groups = {tuple(two for two in members if one == two or rows[one][position[two]] <= near) for one in members}
        apart = sum(map(len, groups)) == len(members)
        if (
            not apart
            or len(groups) < 2
            or len({len(nodes_of_die) for nodes_of_die in groups}) > 1
            or len(min(groups)) < 2
        ):
            return {}
        found |= {node: die for die, nodes_of_die in enumerate(sorted(groups)) for node in nodes_of_die}
    return found


def _clusters_of_die(members: Mapping[int, Place]) -> tuple[list[tuple[int, ...]], str]:
    nodes = {place.node for place in members.values()}
    if len(nodes) > 1 and None not in nodes:
        return _split({cpu: (place.node or 0,) for cpu, place in members.items()}), "one per NUMA node"
    if any(place.l3 for place in members.values()):
        # Some laptops have cores outside the L3, on a part of the chip that stays awake; those go by their L2.
        rest = any(not place.l3 for place in members.values())
        rule = f"cores sharing an L3 cache{', or an L2 where there is no L3' if rest else ''}"
        return _split({cpu: place.l3 or place.l2 or () for cpu, place in members.items()}), rule
    for rule, keys in (
        ("cores sharing an L2 cache", {cpu: place.l2 for cpu, place in members.items()}),
        ("what the kernel calls a cluster", {cpu: place.neighbours for cpu, place in members.items() if not place.l2}),
    ):
        shared = {cpu: key for cpu, key in keys.items() if key}
        if len(shared) == len(members) and any(set(key) - set(members[cpu].siblings) for cpu, key in shared.items()):
            return _split(shared), rule
    return [tuple(sorted(members))], WHOLE_DIE


def _split(keys: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(cpu for cpu in sorted(keys) if keys[cpu] == key) for key in sorted(set(keys.values()))]
