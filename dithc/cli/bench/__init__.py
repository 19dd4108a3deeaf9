"""`dithc bench`: times what training is made of, on this machine.

What: the verb, whose every kind of measurement is a `Kind` in a file of its own: arguments, a call of `dithc.bench`, a table.
Invariants: no file imports what it measures before its kind is called.
How to change it: another kind is a `Kind` and a line of `verb.KINDS`.
"""

from dithc.cli.bench.arguments import add_override
from dithc.cli.bench.verb import EXAMPLE, SUMMARY, add_arguments, run

__all__ = ["EXAMPLE", "SUMMARY", "add_arguments", "add_override", "run"]
