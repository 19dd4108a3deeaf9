"""Training steps in one process: timed in several ways, in turns, and their losses on several platforms.

What: `bench_step` measures one step of each contender (`variants.CONTENDERS`) beside the machine's ceilings; `bench_device`
one of PyTorch on a GPU; `curves` trains on one platform (`curves.PLATFORMS`) from the same weights, images and noise wherever
it runs.
Invariants: all contenders train one model in turn; a contender or platform that is not here is a result with its reason.
How to change it: another way to run a step is a line of `variants.CONTENDERS`, another platform one of `curves.PLATFORMS`.
"""

from dithc.bench.step import curves, variants
from dithc.bench.step.device import bench_device
from dithc.bench.step.measure import StepSettings, bench_step

__all__ = ["StepSettings", "bench_device", "bench_step", "curves", "variants"]
