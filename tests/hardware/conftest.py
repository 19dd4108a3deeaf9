"""Writes sysfs and procfs trees of machines that are not here."""

from collections.abc import Callable
from pathlib import Path

import pytest


class Tree:
    """A written machine below `root`; each method adds what one kernel interface would show."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def cpu(self, cpu: int, *, socket: int, die: int, siblings: str, l3: str | None = None) -> None:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        self.write(f"{folder}/topology/physical_package_id", str(socket))
        self.write(f"{folder}/topology/die_id", str(die))
        self.write(f"{folder}/topology/core_cpus_list", siblings)
        if l3:
            self.write(f"{folder}/cache/index3/level", "3")
            self.write(f"{folder}/cache/index3/type", "Unified")
            self.write(f"{folder}/cache/index3/size", "32768K")
            self.write(f"{folder}/cache/index3/shared_cpu_list", l3)

    def online(self, cpus: str) -> None:
        self.write("sys/devices/system/cpu/online", cpus)

    def node(self, node: int, *, cpus: str, gib: int, distances: str) -> None:
        folder = f"sys/devices/system/node/node{node}"
        self.write(f"{folder}/cpulist", cpus)
        self.write(f"{folder}/meminfo", f"Node {node} MemTotal:       {gib * 1024 * 1024} kB")
        self.write(f"{folder}/distance", distances)

    def process(self, *, allowed: str, gib: int = 64) -> None:
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed}")
        self.write("proc/meminfo", f"MemTotal: {gib * 1024 * 1024} kB\nMemAvailable: {gib * 1024 * 512} kB")
        self.write("proc/cpuinfo", "model name : Written CPU\nflags : fpu avx2 avx512f")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def two_sockets(tree: Tree) -> Tree:
    """2 sockets x 2 NUMA nodes x 20 cores x 2 threads; nodes 4 and 5 are on-package memory without CPUs."""
    num_cores = 80
    for core in range(num_cores):
        for cpu in (core, core + num_cores):
            tree.cpu(cpu, socket=core // 40, die=0, siblings=f"{core},{core + num_cores}", l3=None)
    tree.online("0-159")
    for node in range(4):
        first = node * 20
        tree.node(node, cpus=f"{first}-{first + 19},{first + 80}-{first + 99}", gib=32, distances="10 12 21 21 13 23")
    for node in (4, 5):
        tree.node(node, cpus="", gib=16, distances="13 13 23 23 10 24")
    tree.process(allowed="0-159", gib=160)
    return tree


@pytest.fixture
def flat_machine(tree: Tree) -> Callable[..., Tree]:
    """One socket without NUMA nodes in sysfs, L3 caches shared by `cores_per_l3` cores each."""

    def build(*, num_cores: int, cores_per_l3: int | None = None, allowed: str | None = None) -> Tree:
        for cpu in range(num_cores):
            first = cpu // cores_per_l3 * cores_per_l3 if cores_per_l3 else 0
            l3 = f"{first}-{first + cores_per_l3 - 1}" if cores_per_l3 else None
            tree.cpu(cpu, socket=0, die=0, siblings=str(cpu), l3=l3)
        tree.online(f"0-{num_cores - 1}")
        tree.process(allowed=allowed or f"0-{num_cores - 1}")
        return tree

    return build
