"""Training runs in separate, interleaved processes: under several strategies, on more ranks, component by component.

`strategies`, `scaling` and `stepwise` each contain one measurement and its settings. `run_once` executes one `Run` of
one `Contender`, observes its memory, and applies a `MemoryLimit`. No run outlives the benchmark. To add a measurement,
add a file like `scaling.py`.
"""

from dithc.bench.trainings import scaling, stepwise, strategies
from dithc.bench.trainings.memory_limit import MemoryLimit
from dithc.bench.trainings.run import Contender, Run, run_once
from dithc.bench.trainings.strategies import turns

__all__ = ["Contender", "MemoryLimit", "Run", "run_once", "scaling", "stepwise", "strategies", "turns"]
