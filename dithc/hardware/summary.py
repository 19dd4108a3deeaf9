"""A machine in a few lines of text, for a person."""

from typing import TYPE_CHECKING

from dithc.hardware.cpu_lists import compact_cpus

if TYPE_CHECKING:
    from dithc.hardware.machine import HugePages, Machine, Node

GIB = 1 << 30
GIGA = 1e9
MANY_NODES = 8


def words(machine: "Machine") -> str:
    """Processor, topology, caches, memory and limits, a line or two each."""
    siblings = max((len(core.cpus) for core in machine.cores), default=1)
    lines = [
        f"{machine.model_name} ({machine.architecture})",
        f"{machine.num_sockets} socket(s), {machine.num_dies} die(s), {len(machine.clusters)} cluster(s), "
        f"{len(machine.cores)} core(s), {siblings} thread(s) per core",
        f"clusters: {machine.cluster_rule}; dies: {machine.die_rule or 'not said'}",
        f"caches: {_caches(machine)}",
        f"memory: {machine.memory_bytes / GIB:.1f} GiB; {_nodes(machine)}",
        *(_tiers(machine) if len(machine.tiers) > 1 else ()),
        f"huge pages: transparent {machine.huge_pages.transparent}; {_pools(machine.huge_pages)}",
        f"limits: {_limits(machine)}",
    ]
    if machine.slower_cores:
        lines.append(f"{len(machine.slower_cores)} of the cores are efficient ones, slower than the others")
    if machine.described_by:
        lines.insert(0, f"described by {machine.described_by}, which stands in for the machine that is here")
    return "\n".join(lines)


def _caches(machine: "Machine") -> str:
    parts = [
        f"L{cache.level}{'' if cache.kind == 'Unified' else cache.kind[0].lower()} {cache.size_bytes // 1024} KiB"
        f" x {cache.count} (each shared by {cache.cpus_per_cache} CPU)"
        for cache in machine.caches
    ]
    return ", ".join(parts) or "not reported"


def _nodes(machine: "Machine") -> str:
    if not machine.nodes:
        return "the kernel reports no NUMA nodes"
    if len(machine.nodes) > MANY_NODES:
        with_cpus = sum(bool(node.cpus) for node in machine.nodes)
        return f"{with_cpus} NUMA node(s) with CPUs, {len(machine.nodes) - with_cpus} of memory only"
    return "; ".join(_node(node) for node in machine.nodes)


def _node(node: "Node") -> str:
    text = f"node {node.index}: {node.memory_bytes / GIB:.1f} GiB"
    text += f"{'' if node.cpus else ' (memory only)'}, distances {' '.join(map(str, node.distances))}"
    return text if node.read_bandwidth is None else f"{text}, {node.read_bandwidth / GIGA:.0f} GB/s by HMAT"


def _tiers(machine: "Machine") -> list[str]:
    return [
        f"tier {tier.kind}: {tier.memory_bytes / GIB:.1f} GiB on node(s) {compact_cpus(tier.nodes)}: {tier.reason}"
        for tier in machine.tiers
    ]


def _pools(huge_pages: "HugePages") -> str:
    parts = [
        f"{reserved} of {size // 1024} KiB reserved, {free} free"
        for size, reserved, free in huge_pages.pools
        if reserved
    ]
    return ", ".join(parts) or "no pages reserved"


def _limits(machine: "Machine") -> str:
    limits = machine.limits
    num_cpus = sum(len(core.cpus) for core in machine.cores)
    parts = [f"{len(limits.allowed_cpus)} of {num_cpus} CPU(s) allowed"]
    if machine.offline_cpus:
        parts.append(f"{len(machine.offline_cpus)} CPU(s) are switched off")
    if limits.cpu_quota is not None:
        parts.append(f"control group allows {limits.cpu_quota:g} CPU(s) of time")
    if limits.memory_limit_bytes is not None:
        parts.append(f"control group allows {limits.memory_limit_bytes / GIB:.1f} GiB")
    if limits.memory_available_bytes is not None:
        parts.append(f"{limits.memory_available_bytes / GIB:.1f} GiB still available")
    return ", ".join(parts)
