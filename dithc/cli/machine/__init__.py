"""Commands for machines: description, tuning and simulation.

Purpose: training is ten times slower on a badly configured machine.

Contents: `doctor`, `tune`, `simulate`. Measurements are in `bench`; `launch` starts ranks.

Invariants: a command's module is imported when the command is called. This package imports none of them.

Extending: add a module here, a line in `VERBS` of `dithc.cli` and a name in its `ROOMS`.
"""

__all__ = []
