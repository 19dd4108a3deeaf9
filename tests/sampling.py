"""Which tests run, and beside which others: a sample of families of slow tests, and units for workers to share.

A family is what carries `@pytest.mark.sampled`: all cases of one test, or, with `sampled("name")`, all tests of that name.
`--sample COMMIT` runs one in `ONE_OF` of each family, at least one, drawn by the hash of the commit. The same commit draws the
same tests. The other tests of a room (a folder here) that are slow or start ranks, and share nothing
with others, are a family as well. What carries `alternates("name", "which")` is expensive to prepare: of the alternatives of a
name it runs one, and of that the sample. Without `--sample`, or where there is no such commit, everything runs.

Workers (`-n`) share units. A test that is slow or starts ranks is a unit of its own, unless it shares an expensive fixture with
others, or says with whom it stays (`unit("name")`); these, and the other tests of a file, stay together. Long units begin first.
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
ONE_OF = 24  # members of a family per member that runs
ONE_OF_SLOW = 10  # and of all slow tests, where the sample is to be short


def commit_of(name: str) -> str:
    """The hash of a commit; empty where there is none of that name, as in an unpacked archive."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def drawn(members: Sequence[str], *, seed: str, one_of: int = ONE_OF) -> set[str]:
    """A part of a family: one in `one_of`, rounded up, the same for the same seed in whatever order they come."""
    by_draw = sorted(members, key=lambda member: sha256(f"{seed} {member}".encode()).digest())
    return set(by_draw[: -(-len(members) // one_of)])


def family_of(item: pytest.Item, *, short: bool) -> tuple[str, int] | None:
    """The name of the family that a test is of, and one of how many of it runs; None where the test always runs."""
    if item.get_closest_marker("long"):  # has a shorter one of its kind, and is no stand-in for that
        return None
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("mpi")
    if short and is_slow:
        return str(item.path.parent), ONE_OF_SLOW
    mark = item.get_closest_marker("sampled")
    if mark is not None:
        return (mark.args[0] if mark.args else item.nodeid.partition("[")[0]), ONE_OF
    return (room_of(item), ONE_OF) if is_slow and unit_of(item) is None else None


def room_of(item: pytest.Item) -> str:
    """The folder of `tests` in which a test is, however deep; that of its file where it is elsewhere."""
    folder = item.path.parent
    return next((str(one) for one in (folder, *folder.parents) if one.parent == ROOT / "tests"), str(folder))


def left_out(items: Iterable[pytest.Item], *, seed: str, short: bool = False) -> set[str]:
    """The tests that the sample of a commit does not have.

    Args:
        items: all tests.
        seed: the hash of the commit.
        short: the slow tests of a folder, and those that start ranks, are one family, of which one in `ONE_OF_SLOW` runs; those
            that share an expensive fixture do not.
    """
    items = list(items)
    others = other_alternatives(items, seed=seed)
    if short:  # what is made once for many tests is too long for a few of them
        others |= {item.nodeid for item in items if item.get_closest_marker("slow") and shared_by(item) is not None}
    families: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        if item.nodeid not in others and (family := family_of(item, short=short)) is not None:
            families[family].append(item.nodeid)
    return others | {
        name
        for (_, one_of), members in families.items()
        for name in set(members) - drawn(members, seed=seed, one_of=one_of)
    }


def other_alternatives(items: Iterable[pytest.Item], *, seed: str) -> set[str]:
    """The tests of the alternatives that are not drawn."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        mark = item.get_closest_marker("alternates")
        if mark is not None and not item.get_closest_marker("long"):
            found[mark.args[0]][mark.args[1]].append(item.nodeid)
    return {
        name
        for alternatives in found.values()
        for which in set(alternatives) - drawn(sorted(alternatives), seed=seed, one_of=len(alternatives))
        for name in alternatives[which]
    }


def shared_by(item: pytest.Item) -> str | None:
    """The unit of an expensive fixture that a test shares with others: its file, or what is made once for the session."""
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
    """The name of the unit that a test is of; None where it is one by itself."""
    if (mark := item.get_closest_marker("unit")) is not None:
        return str(mark.args[0])
    shared = shared_by(item)
    if shared is None and any(item.get_closest_marker(name) for name in ("slow", "mpi", "long")):
        return None
    return shared or file_of(item)


def long_units_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which workers take their units: slow ones together, slow ones alone, whole files."""
    slow_units = {unit_of(item) for item in items if item.get_closest_marker("slow")} - {None}

    def rank(item: pytest.Item) -> int:
        unit = unit_of(item)
        return 0 if unit in slow_units else 1 if unit is None else 2

    return sorted(items, key=rank)


def write_units(items: Iterable[pytest.Item], path: Path) -> None:
    """Writes the unit of each test, for the process that hands them out; all workers write the same."""
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({item.nodeid: unit_of(item) or item.nodeid for item in items}, file)
    os.replace(file.name, path)


def scheduler(config: pytest.Config, log: Any, path: Path) -> Any:
    """Hands out whole units, in the order in which the workers have them."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    config.option.loadscopereorder = False

    class Units(LoadScopeScheduling):
        @cached_property
        def units(self) -> dict[str, str]:
            return json.loads(path.read_text())

        def _split_scope(self, nodeid: str) -> str:
            return self.units[nodeid]

    return Units(config, log)
