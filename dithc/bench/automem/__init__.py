"""What AutoMem and its tiers of memory give: trainings under budgets, and steps that take turns in one process.

What: `bench_automem` runs the parts that `AutoMemSettings` name.
Invariants: a part that cannot run here is a result with its reason; every run is a process of its own, but for the steps.
How to change it: another part is a method of `runs.Trainings`, or a function of `steps.py`, and a line of `measure.py`.
"""

from dithc.bench.automem.measure import bench_automem
from dithc.bench.automem.settings import AutoMemSettings

__all__ = ["AutoMemSettings", "bench_automem"]
