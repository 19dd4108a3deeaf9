"""Generation of one image by one rank and by several: seconds per step and image, speedups, output differences.

Purpose: the speedup of a partition is meaningful relative to one rank in the same minute, to one process with all cores
(the alternative for a user), and to N independent processes.

Contents: `bench_sampling` starts ranks and one process with all their cores, and interleaves `VARIANTS` on them for
each `SamplingCase` of `SamplingSettings`. Then an image is decoded by several variants (`decoders`). `run_worker` runs in
these processes.

Invariants: idle processes sleep at a socket and use no core. The time of a round is the time of its slowest rank, from
a barrier on. Memory is measured in freshly started ranks. Every output on every rank is compared numerically with the
output of one rank. All weights are random, including heads and gates, because untrained networks return 0 regardless of
faults.

Extending: add a variant to `variants.VARIANTS`. Add a decoder to `decoders.DECODERS`. Only `diffusers_pipeline.py` imports
diffusers.
"""

from dithc.bench.sampling.measure import SamplingSettings, bench_sampling
from dithc.bench.sampling.variants import DIFFUSERS, NORMAL
from dithc.bench.sampling.workers import run_worker

__all__ = ["DIFFUSERS", "NORMAL", "SamplingSettings", "bench_sampling", "run_worker"]
