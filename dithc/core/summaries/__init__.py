"""Summaries of benchmarks, shown on a terminal and in the report, and the format of numbers.

Contents: `Measurement` holds tables (`Table`), notes and conditions of a benchmark result. The functions format numbers.

Invariants: standard library only. Terminal and report render the same texts.

Extending: a new format is a function in `numbers.py`.
"""

from dithc.core.summaries.measurement import Measurement, Table
from dithc.core.summaries.numbers import ABSENT, gib, percent, rounded, short, short_or_absent, with_deviation

__all__ = [
    "ABSENT",
    "Measurement",
    "Table",
    "gib",
    "percent",
    "rounded",
    "short",
    "short_or_absent",
    "with_deviation",
]
