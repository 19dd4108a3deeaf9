"""Plugins of dithc: entry points of installed packages, loaded when a configuration names them.

Purpose: a package adds samplers, sources, codecs, extractors or conditions without changes to dithc. It declares them
in its pyproject.toml:

    [project.entry-points."dithc.samplers"]
    name = "package.module:Class"

Contents: `find_plugin` returns the extension with a group and name, `list_plugins` lists the extensions of a group. An
`Plugin` loads the object of its entry point. `fault` builds the error of an extension that violates its contract.
Invariants: only the named extension is imported, and only for a name that is not built in. An extension never replaces
a built-in name. A name that two packages provide is rejected.
Extending: a new group needs a name in `GROUPS` and a class of settings in dithc.config.schema.plugins. The package that uses
the group defines and tests its contract; docs/extending.md documents all contracts.
"""

from dithc.core.plugins.discovery import FIX, GROUPS, Group, Plugin, fault, find_plugin, list_plugins

__all__ = ["FIX", "GROUPS", "Group", "Plugin", "fault", "find_plugin", "list_plugins"]
