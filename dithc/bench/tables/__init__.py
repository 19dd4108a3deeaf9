"""Summaries of benchmark results, shown on a terminal and in the report.

Contents: `summary` returns the tables, notes and conditions of a result.

Invariants: summaries contain numbers of the result and ratios of them. They measure nothing.

Extending: another benchmark is a function that returns a `Measurement`, and an entry of `render.SUMMARIES`.
"""

from dithc.bench.tables.render import summary

__all__ = ["summary"]
