"""Single operators: timed interleaved with PyTorch's at the shapes of a training step, and tuned.

`ops.bench_ops` measures. `tune` searches and stores the blocking of matrix products, `show_tuning` reads it. dithc's
and PyTorch's operators and the ceilings are interleaved in the same rounds. To add an operator, add a function to
`cases.py`.
"""

from dithc.bench.operators import ops
from dithc.bench.operators.search import TuneSettings, show_tuning, tune
from dithc.bench.operators.settings import autocast_context

__all__ = ["TuneSettings", "autocast_context", "ops", "show_tuning", "tune"]
