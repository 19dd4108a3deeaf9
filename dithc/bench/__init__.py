"""Measurements: what a training step costs, next to what this machine can do at most, in one run.

Why: a time alone says nothing on a shared machine; the contenders take turns inside one run, and the ceilings (a large
matrix product, a copy) are measured in the same minute.
Invariants: warm-up is not counted; every number comes with its spread and repeats; the result holds the machine, the
versions and the settings; a contender that cannot run here is a result with its reason, not a failure.
How to change it: another way to run a step is a line of `contenders.CONTENDERS`; another measurement is a file like
`step.py` that returns one JSON-ready dictionary.
"""

from dithc.bench.contenders import CONTENDERS
from dithc.bench.step import StepSettings, bench_step, step_table

__all__ = ["CONTENDERS", "StepSettings", "bench_step", "step_table"]
