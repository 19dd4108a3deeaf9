"""Measurements: what operators and training steps cost next to what this machine can do; the search for what costs least.

What: `ops.bench_ops`, `step.bench_step`, `strategies.bench_strategies` and `scaling.bench_scaling` measure, and so do the files
`stepwise` (what each part adds), `automem` (what tiers of memory give), `staging` (scenes to tiles) and `collectives`;
`tune` searches blocking for matrix products and keeps what it finds, `show_tuning` reads that, and `table` makes any of their
results readable.
Why: a time alone says nothing on a shared machine; the contenders take turns inside one run, and the ceilings
(multiply-adds in registers, a copy) are measured in the same minute.
Invariants: warm-up is not counted; every number comes with its spread and repeats; the result holds the machine, the
versions and the settings; a contender that cannot run here is a result with its reason, not a failure.
How to change it: another way to run a step is a line of `contenders.CONTENDERS`; another operator is a function of
`operators.py`; another measurement is a file like `step.py` that returns one JSON-ready dictionary.
"""

from dithc.bench import ops, scaling, step, strategies
from dithc.bench.search import TuneSettings, show_tuning, tune
from dithc.bench.tables import table

__all__ = ["TuneSettings", "ops", "scaling", "show_tuning", "step", "strategies", "table", "tune"]
