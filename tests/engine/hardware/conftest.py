"""Emulated trees of machines, for the tests of `dithc.engine.hardware`."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.hardware.tree import Tree


@pytest.fixture
def dithc_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    return caplog


@pytest.fixture
def restored_masks() -> Iterator[None]:
    """Restore the mask of every thread of this process after the test, because threads of a team stay pinned."""
    before = {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
    yield
    for thread, mask in before.items():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(thread, mask)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def two_sockets(tree: Tree) -> Tree:
    """Add 2 sockets x 2 NUMA nodes x 20 cores x 2 threads; nodes 4 and 5 are on-package memory without CPUs."""
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
    """Return a builder of one socket without NUMA nodes in sysfs, with L3 caches shared by `cores_per_l3` cores."""

    def build(*, num_cores: int, cores_per_l3: int | None = None, allowed: str | None = None) -> Tree:
        for cpu in range(num_cores):
            first = cpu // cores_per_l3 * cores_per_l3 if cores_per_l3 else 0
            l3 = f"{first}-{first + cores_per_l3 - 1}" if cores_per_l3 else None
            tree.cpu(cpu, socket=0, die=0, siblings=str(cpu), l3=l3)
        tree.online(f"0-{num_cores - 1}")
        tree.process(allowed=allowed or f"0-{num_cores - 1}")
        return tree

    return build
