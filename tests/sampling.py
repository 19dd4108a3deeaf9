"""Selection and distribution of tests: samples of slow test families, and units of work for workers.

A family is a set of tests with `@pytest.mark.sampled`: all cases of one test or, with `sampled("name")`, all tests of
that name. `--sample COMMIT` runs one in `ONE_OF` of each family, at least one, selected by the hash of the commit.
Equal commits select equal tests. Other slow or multi-rank tests of a package (a folder here) without shared fixtures
are also a family. `alternates("name", "which")` marks tests with expensive setup: one alternative of a name runs, and
of it the sample. Without `--sample`, or if the commit does not exist, all tests run.

Workers (`-n`) share units. A slow or multi-rank test is a separate unit, unless it shares an expensive fixture or names
its unit (`unit("name")`). The tests of a unit, and the other tests of a file, stay together. Long units start first.
"""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ONE_OF = 32  # family members per selected member
ONE_OF_SLOW = 10  # the same for slow tests of a short sample


def commit_of(name: str) -> str:
    """Return the hash of a commit; empty if it does not exist, as in an unpacked archive."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def select_members(members: Sequence[str], *, seed: str, one_of: int = ONE_OF) -> set[str]:
    """Select one in `one_of` family members, rounded up, by the seed and independent of their order."""
    by_draw = sorted(members, key=lambda member: sha256(f"{seed} {member}".encode()).digest())
    return set(by_draw[: -(-len(members) // one_of)])


def family_of(item: pytest.Item, *, short: bool) -> tuple[str, int] | None:
    """Return the family of a test and the number of members per selected member; None if the test always runs."""
    if item.get_closest_marker("long"):  # a shorter test of the same type represents it
        return None
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("mpi")
    if short and is_slow:
        return str(item.path.parent), ONE_OF_SLOW
    mark = item.get_closest_marker("sampled")
    if mark is not None:
        return (mark.args[0] if mark.args else item.nodeid.partition("[")[0]), ONE_OF
    return (package_of(item), ONE_OF) if is_slow and unit_of(item) is None else None


def package_of(item: pytest.Item) -> str:
    """Return the folder of `tests` that contains a test at any depth, or the folder of its file elsewhere."""
    folder = item.path.parent
    return next((str(parent) for parent in (folder, *folder.parents) if parent.parent == ROOT / "tests"), str(folder))


def skipped_tests(items: Iterable[pytest.Item], *, seed: str, short: bool = False) -> set[str]:
    """Return the tests that are not in the sample of a commit.

    Args:
        items: All tests.
        seed: Hash of the commit.
        short: Treat slow and multi-rank tests of a folder as one family, of which one in `ONE_OF_SLOW` runs; skip tests
            that share an expensive fixture.
    """
    items = list(items)
    others = other_alternatives(items, seed=seed)
    if short:  # an expensive fixture takes too long for a few tests
        others |= {item.nodeid for item in items if item.get_closest_marker("slow") and shared_unit(item) is not None}
    families: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        if item.nodeid not in others and (family := family_of(item, short=short)) is not None:
            families[family].append(item.nodeid)
    return others | {
        name
        for (_, one_of), members in families.items()
        for name in set(members) - select_members(members, seed=seed, one_of=one_of)
    }


def other_alternatives(items: Iterable[pytest.Item], *, seed: str) -> set[str]:
    """Return the tests of alternatives that are not selected."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        mark = item.get_closest_marker("alternates")
        if mark is not None and not item.get_closest_marker("long"):
            found[mark.args[0]][mark.args[1]].append(item.nodeid)
    return {
        name
        for alternatives in found.values()
        for alternative in set(alternatives) - select_members(sorted(alternatives), seed=seed, one_of=len(alternatives))
        for name in alternatives[alternative]
    }


def shared_unit(item: pytest.Item) -> str | None:
    """Return the unit of an expensive shared fixture: its file, or the session fixture's name."""
    found = None
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():  # type: ignore[attr-defined]
        for definition in definitions:
            module = definition.func.__module__.split(".")
            if module[0] != "tests" or definition.scope == "function":
                continue
            if definition.scope == "session":
                return f"{module[-2]}.{name}"
            found = file_of(item)
    return found


def file_of(item: pytest.Item) -> str:
    return f"{item.path.parent.name}.{item.path.stem}"


def unit_of(item: pytest.Item) -> str | None:
    """Return the unit of a test; None if the test is a separate unit."""
    if (mark := item.get_closest_marker("unit")) is not None:
        return str(mark.args[0])
    shared = shared_unit(item)
    if shared is None and any(item.get_closest_marker(name) for name in ("slow", "mpi", "long")):
        return None
    return shared or file_of(item)


def long_units_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in unit order: grouped slow tests, single slow tests, complete files."""
    slow_units = {unit_of(item) for item in items if item.get_closest_marker("slow")} - {None}

    def rank(item: pytest.Item) -> int:
        unit = unit_of(item)
        return 0 if unit in slow_units else 1 if unit is None else 2

    return sorted(items, key=rank)


def write_units(items: Iterable[pytest.Item], path: Path) -> None:
    """Write the unit of each test for the distributing process; all workers write equal files."""
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({item.nodeid: unit_of(item) or item.nodeid for item in items}, file)
    os.replace(file.name, path)


def scheduler(config: pytest.Config, log: Any, path: Path) -> Any:
    """Distribute complete units in the order of the workers."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    config.option.loadscopereorder = False

    class Units(LoadScopeScheduling):
        @cached_property
        def units(self) -> dict[str, str]:
            return json.loads(path.read_text())

        def _split_scope(self, nodeid: str) -> str:
            return self.units[nodeid]

    return Units(config, log)
