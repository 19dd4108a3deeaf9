"""The results of this room's measurements as tables for a terminal.

What: `table` finds by what a result holds which measurement it is of, and writes it for a person.
Invariants: nothing is measured or computed here but ratios of numbers that stand in the result.
How to change it: another measurement is a file here, and a line of `tables.py`.
"""

from dithc.bench.tables.tables import table

__all__ = ["table"]
