"""Commands for entire experiments: run an experiment, show its progress, write its report.

Purpose: users start with these commands.

Contents: `run`, `status`, `report`, `paper`. `screen` redraws lines in place on a terminal.

Invariants: a command's module is imported when the command is called. This package imports none of them.

Extending: add a module here, a line in `VERBS` of `dithc.cli` and a name in its `ROOMS`.
"""

__all__ = []
