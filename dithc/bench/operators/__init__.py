"""Operators alone: timed in turns with PyTorch's at the shapes of a training step, and searched for what costs least.

What: `ops.bench_ops` measures; `tune` searches blocking for matrix products and keeps what it finds, `show_tuning` reads that.
Invariants: ours and PyTorch's take turns, beside the ceilings of the same rounds.
How to change it: another operator is a function of `cases.py`.
"""

from dithc.bench.operators import ops
from dithc.bench.operators.search import TuneSettings, show_tuning, tune
from dithc.bench.operators.settings import precision

__all__ = ["TuneSettings", "ops", "precision", "show_tuning", "tune"]
