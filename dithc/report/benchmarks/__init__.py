"""Scaling curves of the engine, from the JSON of `dithc bench scaling` and `dithc simulate`, and from the paper.

Contents: `scaling_curves` has the curves of the figures of weak and strong scaling, and their tables.

Invariants: a file of another type is an error. Only ratios and units are computed.

Extending: a figure of another benchmark is a part in `page/engine_parts.py` and a file in `figures/`.
"""

from dithc.report.benchmarks import scaling_curves

__all__ = ["scaling_curves"]
