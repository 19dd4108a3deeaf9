"""Memory use of this process, and the placement of its pages.

Contents: `place_pages` puts each cluster's part of weights, gradients and optimizer state on its own memory node and on huge
pages. `release_pages` returns memory to the system. `page_residency` returns the location of pages. Further functions return
resident memory, current and peak.

Invariants: memory is a result of this project, because the peaks of training steps are compared between strategies. It
is therefore read from the kernel inside the process; a launcher would measure only itself. All sizes are in bytes. A
number that the kernel does not provide is None, never an estimate.

Extending: `process_memory.py` parses the kernel's data about the process and its mappings. Allocation belongs to the package
`memory`.
"""

from dithc.engine.numa.page_placement import PagePlacement, place_pages, release_pages
from dithc.engine.numa.process_memory import (
    PeakMemory,
    available_bytes,
    page_residency,
    peak_rss_bytes,
    pss_bytes,
    ranks_on_node,
    reset_peak_rss,
)

__all__ = [
    "PagePlacement",
    "PeakMemory",
    "available_bytes",
    "page_residency",
    "peak_rss_bytes",
    "place_pages",
    "pss_bytes",
    "ranks_on_node",
    "release_pages",
    "reset_peak_rss",
]
