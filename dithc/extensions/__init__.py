"""What installed packages add to dithc: found by their entry points, loaded when a configuration names them.

What: `find` gives the extension of a group and a name, `installed` lists those of a group; an `Extension` knows its package and
version and loads what its entry point names. A package says in its pyproject.toml

    [project.entry-points."dithc.samplers"]
    name = "package.module:Class"

Why: a sampler, source, codec, extractor or condition of one's own is used like a built-in one, and this package stays as it is.
Invariants: nothing is read before a name is asked for that is not built in, and then only the one that bears it is imported; what
is built in is never replaced; a name that two packages bring is refused. What an entry point must name, and how that is tried, is
the business of the room that asks (dithc.config for settings; docs/extending.md has all contracts).
How to change it: a new group is a name in `GROUPS`, a class of settings in dithc.config, and the room that asks for it.
"""

from dithc.extensions.finding import GROUPS, Extension, Group, find, installed

__all__ = ["GROUPS", "Extension", "Group", "find", "installed"]
