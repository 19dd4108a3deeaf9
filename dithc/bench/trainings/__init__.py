"""Whole trainings in processes of their own, which take turns: under several strategies, on more ranks, part by part.

What: `strategies`, `scaling` and `stepwise` each hold one measurement and its settings; `run_once` makes one `Run` of one
`Contender`, its memory watched, under a `MemoryLimit` where that is wanted.
Invariants: no run outlives the bench; runs of all contenders take turns, in rounds.
How to change it: another measurement is a file like `scaling.py`.
"""

from dithc.bench.trainings import scaling, stepwise, strategies
from dithc.bench.trainings.memory_limit import MemoryLimit
from dithc.bench.trainings.run import Contender, Run, run_once
from dithc.bench.trainings.strategies import turns

__all__ = ["Contender", "MemoryLimit", "Run", "run_once", "scaling", "stepwise", "strategies", "turns"]
