"""Where the memory of this process is, and the pool that hot tensors come from.

What: `Pool`, tensors over pre-faulted huge pages that are used again; `place`, which puts each cluster's part of weights,
gradients and optimizer state on its own memory node and on huge pages; `residence`, where pages are; and the truth about
resident memory, now and at its peak.
Why: on these machines page faults cost more than many operators; and memory is a result of this project (the peak of a
training step is compared between strategies), so it is read from the kernel, inside the process, not from a launcher that
only measures itself.
Invariants: bytes everywhere; a number that the kernel does not offer is None, never an estimate. A tensor of the pool is an
ordinary torch tensor; what lives in it is undefined until it is written. Only C memory of the pool is kept: its blocks in use
and idle together stay near the most that was ever in use at once.
How to change it: memory tiers will enter through this same door; the pool itself is `kernels/memory/pool.c`.
"""

from dithc.memory.placement import Placement, place
from dithc.memory.pool import Pool
from dithc.memory.process import available_bytes, peak_rss_bytes, pss_bytes, reset_peak_rss
from dithc.memory.residence import residence

__all__ = [
    "Placement",
    "Pool",
    "available_bytes",
    "peak_rss_bytes",
    "place",
    "pss_bytes",
    "reset_peak_rss",
    "residence",
]
