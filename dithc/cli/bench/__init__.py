"""`dithc bench`: measurements of operators, training steps and training runs on this machine.

Contents: one `Benchmark` per measurement, in a separate file: arguments, a call of `dithc.bench`, a table.

Invariants: a file imports the measured package only when its `Benchmark` runs.

Extending: add a `Benchmark` and a line in `command.KINDS`.
"""

from dithc.cli.bench import arguments
from dithc.cli.bench.command import EXAMPLE, SUMMARY, add_arguments, run

__all__ = ["EXAMPLE", "SUMMARY", "add_arguments", "arguments", "run"]
