"""`dithc bench`: measurements of operators, training steps and training runs on this machine.

Contents: one `Benchmark` per measurement, in a separate file: arguments, a call of `dithc.bench`, a table.

Invariants: a file imports the measured package only when its `Benchmark` runs.

Extending: add a `Benchmark` and a line in `command.KINDS`.
"""

from dithc.cli.bench.arguments import add_choice, add_dtypes, add_number, add_override, numbers, settings_of
from dithc.cli.bench.command import EXAMPLE, SUMMARY, add_arguments, run

__all__ = [
    "EXAMPLE",
    "SUMMARY",
    "add_arguments",
    "add_choice",
    "add_dtypes",
    "add_number",
    "add_override",
    "numbers",
    "run",
    "settings_of",
]
