"""Entry points of installed packages: which there are, of whom, and what they name."""

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from dithc.log import UserError, problem

Group = Literal["samplers", "sources", "codecs", "extractors", "conditions"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """One thing that a package adds.

    Attributes:
        group: what it is.
        name: the `kind` under which configurations name it.
        package, version: who brings it.
        target: module and name of what it is in the package, as the entry point says.
    """

    group: Group
    name: str
    package: str
    version: str
    target: str
    point: EntryPoint = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.package} {self.version})"

    def load(self) -> Any:
        """Imports it.

        Raises:
            UserError: it cannot be imported, for whatever reason.
        """
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise self.fault(
                "cannot be loaded",
                got=f"{type(error).__name__}: {error}",
                expected=f"a module that can be imported and has {self.target}",
            ) from error

    def fault(self, what: str, *, got: object, expected: object) -> UserError:
        """The error of an extension that does not keep its contract."""
        return problem(
            f"{self.name!r} of {self.package} {self.version} (entry point dithc.{self.group}) {what}",
            got=got,
            expected=expected,
            fix=f"mend {self.package}, or install another version of it; docs/extending.md says what is expected",
        )


def installed(group: Group) -> list[Extension]:
    """What installed packages bring of a group, in the order of names; nothing of it is imported."""
    return list(_read(tuple(sys.path), group))


def find(group: Group, name: str, *, built_in: Collection[str] = ()) -> Extension:
    """The extension of a name that is not built in.

    Raises:
        UserError: no installed package brings it, or several do.
    """
    known = installed(group)
    found = [one for one in known if one.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise problem(
            f"{name!r} of dithc.{group} is brought by several packages",
            got=", ".join(f"{one.package} {one.version}" for one in found),
            expected="one",
            fix="uninstall the others (pip uninstall)",
        )
    brought = ", ".join(map(str, known)) or "none"
    raise problem(
        f"{name!r} is neither built in nor of an installed package",
        got=f"dithc.{group} of installed packages: {brought}",
        expected=f"one of these, or of {', '.join(built_in)}" if built_in else "one of these",
        fix=f"correct the name, or pip install the package that brings it into this environment ({sys.prefix})",
    )


@cache
def _read(_: tuple[str, ...], group: Group) -> tuple[Extension, ...]:
    """The entry points of a group, for what sys.path is now; several packages of one name stay several."""
    found = {}
    for point in entry_points(group=f"dithc.{group}"):
        package, version = (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "unknown")
        found[point.name, package] = Extension(
            group=group, name=point.name, package=package, version=version, target=point.value, point=point
        )
    return tuple(found[key] for key in sorted(found))
