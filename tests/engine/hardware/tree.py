"""Emulation of the sysfs and procfs trees of other machines, file by file."""

from collections.abc import Sequence
from pathlib import Path

from dithc.engine.hardware.cpu_lists import compact_cpus


class Tree:
    """Emulated machine below `root`. Each method adds the files of one kernel interface."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def cpu(
        self, cpu: int, *, socket: int, siblings: str, die: int | None = 0, l3: str | None = None, l2: str | None = None
    ) -> None:
        """Add a logical CPU; `die` None omits its file, as on Arm; caches by the list of sharing
        CPUs.
        """
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        self.write(f"{folder}/topology/physical_package_id", str(socket))
        if die is not None:
            self.write(f"{folder}/topology/die_id", str(die))
        self.write(f"{folder}/topology/core_cpus_list", siblings)
        for level, size, sharers in ((2, "1024K", l2), (3, "32768K", l3)):
            if sharers:
                self.write(f"{folder}/cache/index{level}/level", str(level))
                self.write(f"{folder}/cache/index{level}/type", "Unified")
                self.write(f"{folder}/cache/index{level}/size", size)
                self.write(f"{folder}/cache/index{level}/shared_cpu_list", sharers)

    def online(self, cpus: str, *, present: str | None = None) -> None:
        self.write("sys/devices/system/cpu/online", cpus)
        self.write("sys/devices/system/cpu/present", present or cpus)

    def node(self, node: int, *, cpus: str, gib: int, distances: str) -> None:
        folder = f"sys/devices/system/node/node{node}"
        self.write(f"{folder}/cpulist", cpus)
        self.write(f"{folder}/meminfo", f"Node {node} MemTotal:       {gib * 1024 * 1024} kB")
        self.write(f"{folder}/distance", distances)

    def hmat(self, node: int, *, mib_per_second: int, ns: int, access: int = 0) -> None:
        """Add the HMAT entry of a node for its nearest initiators, in the form of kernels since 5.5."""
        folder = f"sys/devices/system/node/node{node}/access{access}/initiators"
        for direction in ("read", "write"):
            self.write(f"{folder}/{direction}_bandwidth", str(mib_per_second))
            self.write(f"{folder}/{direction}_latency", str(ns))

    def pool(self, folder: str, *, kib: int, reserved: int, free: int) -> None:
        self.write(f"{folder}/hugepages-{kib}kB/nr_hugepages", str(reserved))
        self.write(f"{folder}/hugepages-{kib}kB/free_hugepages", str(free))

    def process(self, *, allowed: str, gib: int = 64, cpuinfo: str = "") -> None:
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed}")
        self.write("proc/meminfo", f"MemTotal: {gib * 1024 * 1024} kB\nMemAvailable: {gib * 1024 * 512} kB")
        self.write("proc/cpuinfo", cpuinfo or "model name : Written CPU\nflags : fpu avx2 avx512f")

    def task(self, thread: int, *, name: str, allowed: str) -> None:
        self.write(f"proc/self/task/{thread}/stat", f"{thread} ({name}) S 0")
        self.write(f"proc/self/task/{thread}/status", f"Name:\t{name}\nCpus_allowed_list:\t{allowed}")


def span(first: int, count: int) -> str:
    return compact_cpus(range(first, first + count))


def distances(groups: Sequence[Sequence[object]], steps: Sequence[int]) -> list[str]:
    """Return the rows of the distance table. A node is a tuple of its groups, outermost first.

    `steps[k]` is the distance of two nodes that share their first k labels; a node has distance 10 to itself.
    """
    rows = []
    for one in groups:
        row = []
        for two in groups:
            shared = next((k for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))
            row.append(10 if one is two else steps[shared])
        rows.append(" ".join(map(str, row)))
    return rows
