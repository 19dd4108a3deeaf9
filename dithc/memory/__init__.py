"""The truth about this process's memory.

Why: memory is a result of this project (the peak of a training step is compared between strategies), so it is read from
the kernel, inside the process, not from a launcher that only measures itself.
Invariants: bytes everywhere; a number that the kernel does not offer is None, never an estimate.
How to change it: memory tiers and the pool of huge pages will enter through this same door.
"""

from dithc.memory.process import available_bytes, peak_rss_bytes, pss_bytes, reset_peak_rss

__all__ = ["available_bytes", "peak_rss_bytes", "pss_bytes", "reset_peak_rss"]
