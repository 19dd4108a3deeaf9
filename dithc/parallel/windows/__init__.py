"""Windows over scenes larger than the input of a network or decoder.

Contents: `Grid` places windows, `Windows` wraps a network for scene latents, `decoded` yields the image by rows, `seam_ratio`
measures visible borders. Invariants: every rank sums windows in grid order; no complete decoded scene is in memory. Extending:
window weights are in `grid.shares`; another traversal is another callable around the network.
"""

from dithc.parallel.windows.decoding import decoded
from dithc.parallel.windows.grid import Grid, seam_ratio
from dithc.parallel.windows.network import Windows

__all__ = ["Grid", "Windows", "decoded", "seam_ratio"]
