"""`dithc bench`: measurements of operators, training steps and training runs on this machine.

Contents: one `Kind` per measurement, in a separate file: arguments, a call of `dithc.bench`, a table.

Invariants: a file imports the measured package only when its `Kind` runs.

Extending: add a `Kind` and a line in `command.KINDS`.
"""

from dithc.cli.bench.arguments import add_override
from dithc.cli.bench.command import EXAMPLE, SUMMARY, add_arguments, run

__all__ = ["EXAMPLE", "SUMMARY", "add_arguments", "add_override", "run"]
