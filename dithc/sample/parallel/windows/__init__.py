"""Windows over scenes larger than the input of a network or decoder.

Contents: `Grid` places windows, `Windows` wraps a network for scene latents, `decoded` yields the image by rows, `seam_ratio`
measures visible borders. Invariants: every rank sums windows in grid order; no complete decoded scene is in memory. Extending:
window weights are in `window_grid.shares`; another traversal is another callable around the network.
"""

from dithc.sample.parallel.windows.decoding import decoded
from dithc.sample.parallel.windows.window_grid import Grid, seam_ratio
from dithc.sample.parallel.windows.windowed_denoiser import Windows

__all__ = ["Grid", "Windows", "decoded", "seam_ratio"]
