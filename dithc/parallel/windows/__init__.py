"""Scenes larger than what a network, or a decoder, takes at once: by windows.

What: `Grid` says where windows lie, `Windows` is a network as samplers call it on whole latents of scenes, `decoded` gives the
image of such a latent by rows, `seam_ratio` tells whether borders of windows are to be seen.
Why: a network makes images of the size it learnt, and a decoded scene is a hundred times as large as its latent.
Invariants: windows are summed in the order of the grid, by every rank alike, whoever made them; nothing as large as a decoded
scene is ever in memory.
How to change it: weights of windows are in `grid.shares` alone; another way to walk a scene is another callable around the
network.
"""

from dithc.parallel.windows.decoding import decoded
from dithc.parallel.windows.grid import Grid, seam_ratio
from dithc.parallel.windows.network import Windows

__all__ = ["Grid", "Windows", "decoded", "seam_ratio"]
