"""What memory this process uses, and where its pages are.

What: `place`, which puts each cluster's part of weights, gradients and optimizer state on its own memory node and on huge pages;
`residence`, where pages are; and the truth about resident memory, now and at its peak.
Why: memory is a result of this project (the peak of a training step is compared between strategies), so it is read from the
kernel, inside the process, not from a launcher that only measures itself.
Invariants: bytes everywhere; a number that the kernel does not offer is None, never an estimate.
How to change it: what the kernel says of mappings is parsed in `residence.py`, of the process in `process.py`. Where memory comes
from is the room `memory`.
"""

from dithc.pages.placement import Placement, place
from dithc.pages.process import available_bytes, peak_rss_bytes, pss_bytes, ranks_on_node, reset_peak_rss
from dithc.pages.residence import residence

__all__ = [
    "Placement",
    "available_bytes",
    "peak_rss_bytes",
    "place",
    "pss_bytes",
    "ranks_on_node",
    "reset_peak_rss",
    "residence",
]
