"""Plugins of dithc: entry points of installed packages, loaded when a configuration names them.

Purpose: a package adds samplers, sources, codecs, extractors or conditions without changes to dithc. It declares them
in its pyproject.toml:

    [project.entry-points."dithc.samplers"]
    name = "package.module:Class"

Contents: `find_plugin` returns the plugin with a group and name, `list_plugins` lists the plugins of a group. A
`Plugin` loads the object of its entry point. `fault` builds the error of a plugin that violates its contract.
Invariants: only the named plugin is imported, and only for a name that is not built in. A plugin never replaces
a built-in name. A name that two packages provide is rejected.
Extending: a new group needs a name in `GROUPS` and a class of settings in dithc.config.schema.plugins. The package that uses
the group defines and tests its contract; docs/extending.md documents all contracts.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from dithc.core.logging import UserError, user_error

Group = Literal["samplers", "sources", "codecs", "extractors", "conditions"]
GROUPS: tuple[Group, ...] = get_args(Group)
FIX = "correct the package or install another version; docs/extending.md defines the contract"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """An entry point of an installed package. `name` is the `kind` in configurations, `target` the module and object."""

    group: Group
    name: str
    package: str
    version: str
    target: str
    point: EntryPoint = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.package} {self.version})"

    def load(self) -> Any:
        """Import the object; raises UserError if the import fails for any reason."""
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise self.fault(
                "cannot be loaded",
                got=f"{type(error).__name__}: {error}",
                expected=f"a module that can be imported and has {self.target}",
            ) from error

    def fault(self, title: str, *, got: object, expected: object) -> UserError:
        """Build the error of a plugin that violates its contract."""
        source = f"{self.name!r} of {self.package} {self.version} (entry point dithc.{self.group})"
        return fault(f"{source} {title}", got=got, expected=expected)


def fault(title: str, *, got: object, expected: object) -> UserError:
    """Build the error of a package that violates its contract."""
    return user_error(title, got=got, expected=expected, fix=FIX)


def list_plugins(group: Group) -> list[Plugin]:
    """Return the plugins of a group in the order of their names, without importing them."""
    return list(_read_entry_points(tuple(sys.path), group))


def find_plugin(group: Group, name: str, *, built_in: Collection[str] = ()) -> Plugin:
    """Return the plugin with a name that is not built in; UserError unless exactly one package provides it."""
    plugins = list_plugins(group)
    matches = [plugin for plugin in plugins if plugin.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise user_error(
            f"several packages provide {name!r} of dithc.{group}",
            got=", ".join(f"{plugin.package} {plugin.version}" for plugin in matches),
            expected="one package",
            fix="uninstall the other packages (pip uninstall)",
        )
    raise user_error(
        f"{name!r} is neither built in nor provided by an installed package",
        got=f"dithc.{group} of installed packages: {', '.join(map(str, plugins)) or 'none'}",
        expected=f"one of these or of {', '.join(built_in)}" if built_in else "one of these",
        fix=f"correct the name, or pip install the package that provides it into this environment ({sys.prefix})",
    )


@cache
def _read_entry_points(_: tuple[str, ...], group: Group) -> tuple[Plugin, ...]:
    """Read the entry points of a group for the given sys.path; keeps equal names of several packages."""
    plugins = {}
    for point in entry_points(group=f"dithc.{group}"):
        package, version = (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "unknown")
        plugins[point.name, package] = Plugin(
            group=group, name=point.name, package=package, version=version, target=point.value, point=point
        )
    return tuple(plugins[key] for key in sorted(plugins))
