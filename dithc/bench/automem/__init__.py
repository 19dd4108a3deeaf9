"""Benchmarks of AutoMem: training runs under memory budgets, and interleaved steps in one process.

Each run except the steps is a separate process. A part that cannot run here is a result with its reason. To add a part,
add a method of `training_runs.TrainingRuns` or a function of `steps.py`, and a line of `measure.py`.
"""

from dithc.bench.automem.measure import bench_automem
from dithc.bench.automem.training_runs import AutoMemSettings

__all__ = ["AutoMemSettings", "bench_automem"]
