"""Reader of sysfs and procfs below a root folder. No other file depends on these trees."""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dithc.core.logging import get_logger
from dithc.core.units import KIB, MIB
from dithc.engine.hardware.limits import Limits, online_cpus, parse_cpu_list, read_number, read_text
from dithc.engine.hardware.machine import Cache, HugePages, Machine, NumaNode
from dithc.engine.hardware.memory_tiers import tiers_of
from dithc.engine.hardware.topology import CpuLocation, group

log = get_logger(__name__)

CPU_FOLDER = "sys/devices/system/cpu"
NODE_FOLDER = "sys/devices/system/node"
# The kernel's capacity of the fastest Arm cores of a machine.
FULL_CAPACITY = 1024

# Names by implementer and part number, as in the kernel's asm/cputype.h.
ARM_CPUS = {
    "0x41 0xd0c": "Neoverse N1",
    "0x41 0xd40": "Neoverse V1",
    "0x41 0xd49": "Neoverse N2",
    "0x41 0xd4f": "Neoverse V2",
    "0x41 0xd84": "Neoverse V3",
    "0x41 0xd8e": "Neoverse N3",
    "0x46 0x001": "A64FX",
    "0x46 0x003": "MONAKA",
    "0x48 0xd01": "Kunpeng 920",
}

STAND_IN_VARIABLE = "DITHC_MACHINE_FILE"
"""Environment variable with a description file that replaces the present machine (`description.read`)."""


def discover_machine(root: str | Path = "/", *, described: bool = True) -> Machine:
    """Read this machine, or the machine with `sys` and `proc` below `root`.

    Values that the kernel does not report (containers without sysfs, no NUMA) are omitted: a CPU without topology is a
    core on socket 0, die 0.

    If `described`, the description in DITHC_MACHINE_FILE replaces this machine, with the limits of this process. It does not
    replace a tree below another root.

    Raises:
        UserError: the description is invalid or has none of the CPUs of this process.
    """
    present = _read_machine(Path(root))
    path = os.environ.get(STAND_IN_VARIABLE, "")
    if not path or not described or Path(root) != Path("/"):
        return present
    from dithc.engine.hardware.description import stand_in

    machine = stand_in(Path(path), present)
    counts = machine.num_dies, len(machine.clusters), len(machine.visible_cores)
    _log_stand_in(path, "{} die(s), {} cluster(s), {} usable core(s)".format(*counts))
    return machine


@cache
def _log_stand_in(path: str, shape: str) -> None:
    """Log the description once, although the machine is discovered repeatedly."""
    log.warning("%s: %s replaces this machine: %s", STAND_IN_VARIABLE, path, shape)


def _read_machine(root: Path) -> Machine:
    limits = Limits.read(root)
    folders = sorted((root / NODE_FOLDER).glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    nodes = tuple(map(_node, folders))
    cpus = online_cpus(root) or limits.allowed_cpus
    present = parse_cpu_list(read_text(root / CPU_FOLDER / "present") or "")
    model_name, flags, architecture = _cpu_info(root)
    slower = parse_cpu_list(read_text(root / "sys/devices/cpu_atom/cpus") or "")
    caches = {cpu: _caches_of(root, cpu) for cpu in cpus}
    locations = {cpu: _cpu_location(root, cpu, nodes, caches[cpu], slower=slower) for cpu in cpus}
    topology = group(locations, nodes, model_name=model_name)
    distinct = {cache for cpu_caches in caches.values() for cache in cpu_caches}
    kinds = Counter((c.level, c.kind, c.size_bytes, c.line_bytes, len(c.cpus)) for c in distinct)
    return Machine(
        model_name=model_name,
        architecture=architecture,
        flags=flags,
        num_sockets=len({location.socket for location in locations.values()}),
        num_dies=topology.num_dies,
        clusters=topology.clusters,
        cluster_rule=topology.cluster_rule,
        cores=topology.cores,
        caches=tuple(
            Cache(level=level, kind=kind, size_bytes=size, line_bytes=line, cpus_per_cache=sharers, count=count)
            for (level, kind, size, line, sharers), count in sorted(kinds.items())
        ),
        nodes=nodes,
        memory_bytes=_meminfo_bytes(root / "proc/meminfo", key="MemTotal:"),
        huge_pages=_huge_pages(root),
        limits=limits,
        tiers=tiers_of(nodes, model_name=model_name),
        die_rule=topology.die_rule,
        offline_cpus=tuple(cpu for cpu in present if cpu not in cpus),
        slower_cores=topology.slower_cores,
    )


def _node(folder: Path) -> NumaNode:
    # Access class 1 has only CPUs as initiators. Class 0, the only class of older kernels, also has devices.
    classes = (folder / name / "initiators" for name in ("access1", "access0"))
    initiators = next((path for path in classes if path.is_dir()), folder / "access0/initiators")
    read_mib, write_mib = (read_number(initiators / f"{direction}_bandwidth") for direction in ("read", "write"))
    return NumaNode(
        index=int(folder.name[4:]),
        cpus=parse_cpu_list(read_text(folder / "cpulist") or ""),
        memory_bytes=_meminfo_bytes(folder / "meminfo", key="MemTotal:"),
        distances=tuple(int(word) for word in (read_text(folder / "distance") or "").split()),
        read_bandwidth=read_mib * MIB if read_mib else None,
        write_bandwidth=write_mib * MIB if write_mib else None,
        read_latency_ns=read_number(initiators / "read_latency") or None,
        write_latency_ns=read_number(initiators / "write_latency") or None,
        huge_page_pools=_pools(folder / "hugepages"),
    )


def _cpu_location(
    root: Path, cpu: int, nodes: Sequence[NumaNode], caches: Iterable["_CpuCache"], *, slower: tuple[int, ...]
) -> CpuLocation:
    topology = root / CPU_FOLDER / f"cpu{cpu}" / "topology"
    siblings = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list") or str(cpu)
    shared = {cache.level: cache.cpus for cache in caches if cache.kind != "Instruction"}
    capacity = read_number(root / CPU_FOLDER / f"cpu{cpu}" / "cpu_capacity")
    return CpuLocation(
        socket=read_number(topology / "physical_package_id") or 0,
        die=read_number(topology / "die_id"),
        siblings=parse_cpu_list(siblings),
        node=next((node.index for node in nodes if cpu in node.cpus), None),
        l3=shared.get(3),
        l2=shared.get(2),
        neighbors=parse_cpu_list(read_text(topology / "cluster_cpus_list") or "") or None,
        slower=cpu in slower or (capacity is not None and capacity < FULL_CAPACITY),
    )


@dataclass(frozen=True)
class _CpuCache:
    level: int
    kind: str
    size_bytes: int
    line_bytes: int
    cpus: tuple[int, ...]


def _caches_of(root: Path, cpu: int) -> list[_CpuCache]:
    caches = []
    for folder in sorted((root / CPU_FOLDER / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
        level, size = read_text(folder / "level"), read_text(folder / "size")
        if level and size:
            caches.append(
                _CpuCache(
                    level=int(level),
                    kind=read_text(folder / "type") or "Unified",
                    size_bytes=int(size.rstrip("KMG")) * KIB ** (1 + "KMG".find(size[-1])),
                    line_bytes=int(read_text(folder / "coherency_line_size") or 0),
                    cpus=parse_cpu_list(read_text(folder / "shared_cpu_list") or str(cpu)),
                )
            )
    return caches


def _meminfo_bytes(path: Path, *, key: str) -> int:
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if key in words:
            return int(words[words.index(key) + 1]) * KIB
    return 0


def _cpu_info(root: Path) -> tuple[str, tuple[str, ...], str]:
    """Return (model name, instruction set flags, architecture). Arm kernels report part numbers, not a model name."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "Features" in fields:
        implementer, part = fields.get("CPU implementer", "?"), fields.get("CPU part", "?")
        name = ARM_CPUS.get(f"{implementer} {part}", f"Arm implementer {implementer} part {part}")
        return fields.get("model name") or name, tuple(fields["Features"].split()), "aarch64"
    architecture = "x86_64" if "flags" in fields else platform.machine()
    return fields.get("model name", "unknown CPU"), tuple(fields.get("flags", "").split()), architecture


def _huge_pages(root: Path) -> HugePages:
    modes = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    transparent = modes.partition("[")[2].partition("]")[0] if modes else "absent"
    return HugePages(transparent=transparent, pools=_pools(root / "sys/kernel/mm/hugepages"))


def _pools(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return (page bytes, reserved pages, free pages) per size, of the machine or a NUMA node, smallest page first."""
    pools = []
    for pool in folder.glob("hugepages-*kB"):
        size = int(pool.name.removeprefix("hugepages-").removesuffix("kB")) * KIB
        pools.append((size, read_number(pool / "nr_hugepages") or 0, read_number(pool / "free_hugepages") or 0))
    return tuple(sorted(pools))
