"""Reads the machine from sysfs and procfs below a root folder; the only file that knows those trees."""

import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dithc.hardware.limits import KIB, Limits, parse_cpu_list, read_text
from dithc.hardware.machine import Cache, Cluster, Core, HugePages, Machine, Node

CPU_FOLDER = "sys/devices/system/cpu"
NODE_FOLDER = "sys/devices/system/node"


@dataclass(frozen=True)
class _Place:
    """Where a logical CPU sits: the keys that grouping needs."""

    socket: int
    die: int
    siblings: tuple[int, ...]
    node: int | None
    l3: tuple[int, ...] | None


def discover(root: str | Path = "/") -> Machine:
    """Reads this machine, or the machine whose sysfs and procfs stand below `root`.

    Whatever the kernel does not tell (a container without sysfs, a kernel without NUMA) is left out, never guessed:
    a CPU without topology is a core of its own on socket 0, die 0.
    """
    root = Path(root)
    limits = Limits.read(root)
    nodes = _nodes(root)
    cpus = parse_cpu_list(read_text(root / CPU_FOLDER / "online") or "") or limits.allowed_cpus
    places = {cpu: _place(root, cpu, nodes) for cpu in cpus}
    cores, clusters, rule = _group(places)
    model_name, flags, architecture = _cpu_info(root)
    return Machine(
        model_name=model_name,
        architecture=architecture,
        flags=flags,
        num_sockets=len({place.socket for place in places.values()}),
        num_dies=len({(place.socket, place.die) for place in places.values()}),
        clusters=clusters,
        cluster_rule=rule,
        cores=cores,
        caches=_caches(root, cpus),
        nodes=nodes,
        memory_bytes=_meminfo_bytes(root / "proc/meminfo", key="MemTotal:"),
        huge_pages=_huge_pages(root),
        limits=limits,
    )


def _nodes(root: Path) -> tuple[Node, ...]:
    folders = sorted((root / NODE_FOLDER).glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    return tuple(
        Node(
            index=int(folder.name[4:]),
            cpus=parse_cpu_list(read_text(folder / "cpulist") or ""),
            memory_bytes=_meminfo_bytes(folder / "meminfo", key="MemTotal:"),
            distances=tuple(int(word) for word in (read_text(folder / "distance") or "").split()),
        )
        for folder in folders
    )


def _place(root: Path, cpu: int, nodes: tuple[Node, ...]) -> _Place:
    topology = root / CPU_FOLDER / f"cpu{cpu}" / "topology"
    siblings = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list") or str(cpu)
    l3 = [cache.cpus for cache in _caches_of(root, cpu) if cache.level == 3]
    return _Place(
        socket=max(0, int(read_text(topology / "physical_package_id") or 0)),
        die=max(0, int(read_text(topology / "die_id") or 0)),
        siblings=parse_cpu_list(siblings),
        node=next((node.index for node in nodes if cpu in node.cpus), None),
        l3=l3[0] if l3 else None,
    )


def _group(places: dict[int, _Place]) -> tuple[tuple[Core, ...], tuple[Cluster, ...], str]:
    """Numbers dies, clusters and cores; the rule of clusters is the one in the room's docstring."""
    dies = sorted({(place.socket, place.die) for place in places.values()})
    cores: list[Core] = []
    clusters: list[Cluster] = []
    rules: list[str] = []
    for die_index, die in enumerate(dies):
        members = {cpu: place for cpu, place in places.items() if (place.socket, place.die) == die}
        groups, rule = _clusters_of_die(members)
        rules.append(rule)
        for group in groups:
            first_core = len(cores)
            for siblings in sorted({tuple(c for c in members[cpu].siblings if c in members) for cpu in group}):
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
                    node=members[group[0]].node,
                    cores=tuple(range(first_core, len(cores))),
                )
            )
    return tuple(cores), tuple(clusters), "; ".join(dict.fromkeys(rules))


def _clusters_of_die(members: dict[int, _Place]) -> tuple[list[tuple[int, ...]], str]:
    nodes = {place.node for place in members.values()}
    if len(nodes) > 1 and None not in nodes:
        return _split(members, {cpu: (place.node or 0,) for cpu, place in members.items()}), "one per NUMA node"
    if all(place.l3 for place in members.values()):
        return _split(members, {cpu: place.l3 or () for cpu, place in members.items()}), "cores sharing an L3 cache"
    return [tuple(sorted(members))], "the whole die (no NUMA nodes inside it, no L3 reported)"


def _split(members: dict[int, _Place], keys: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(cpu for cpu in sorted(members) if keys[cpu] == key) for key in sorted(set(keys.values()))]


@dataclass(frozen=True)
class _CacheOfCpu:
    level: int
    kind: str
    size_bytes: int
    line_bytes: int
    cpus: tuple[int, ...]


def _caches_of(root: Path, cpu: int) -> list[_CacheOfCpu]:
    found = []
    for folder in sorted((root / CPU_FOLDER / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
        level, size = read_text(folder / "level"), read_text(folder / "size")
        if level and size:
            found.append(
                _CacheOfCpu(
                    level=int(level),
                    kind=read_text(folder / "type") or "Unified",
                    size_bytes=int(size.rstrip("KMG")) * KIB ** (1 + "KMG".find(size[-1])),
                    line_bytes=int(read_text(folder / "coherency_line_size") or 0),
                    cpus=parse_cpu_list(read_text(folder / "shared_cpu_list") or str(cpu)),
                )
            )
    return found


def _caches(root: Path, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    distinct = {cache for cpu in cpus for cache in _caches_of(root, cpu)}
    kinds = Counter((c.level, c.kind, c.size_bytes, c.line_bytes, len(c.cpus)) for c in distinct)
    return tuple(
        Cache(level=level, kind=kind, size_bytes=size, line_bytes=line, cpus_per_cache=sharers, count=count)
        for (level, kind, size, line, sharers), count in sorted(kinds.items())
    )


def _meminfo_bytes(path: Path, *, key: str) -> int:
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if key in words:
            return int(words[words.index(key) + 1]) * KIB
    return 0


def _cpu_info(root: Path) -> tuple[str, tuple[str, ...], str]:
    """(model name, instruction set flags, architecture); Arm kernels give no model name, only part numbers."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "Features" in fields:
        part = f"Arm implementer {fields.get('CPU implementer', '?')} part {fields.get('CPU part', '?')}"
        return fields.get("model name") or part, tuple(fields["Features"].split()), "aarch64"
    architecture = "x86_64" if "flags" in fields else platform.machine()
    return fields.get("model name", "unknown CPU"), tuple(fields.get("flags", "").split()), architecture


def _huge_pages(root: Path) -> HugePages:
    modes = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    transparent = modes.partition("[")[2].partition("]")[0] if modes else "absent"
    pools = []
    for folder in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) * KIB
        reserved, free = (int(read_text(folder / name) or 0) for name in ("nr_hugepages", "free_hugepages"))
        pools.append((size, reserved, free))
    return HugePages(transparent=transparent, pools=tuple(pools))
