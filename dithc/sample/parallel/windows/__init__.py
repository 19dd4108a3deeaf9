"""Windows over scenes larger than the input of a network or decoder.

Contents: `WindowGrid` places windows, `WindowedDenoiser` wraps a network for scene latents, `decode_by_rows` yields the image by
rows, `seam_ratio` measures visible borders. Invariants: every rank sums windows in grid order; no complete decoded scene is in
memory. Extending: window weights are in `window_grid.window_weights`; another traversal is another callable around the network.
"""

from dithc.sample.parallel.windows.decoding import decode_by_rows
from dithc.sample.parallel.windows.window_grid import WindowGrid, seam_ratio
from dithc.sample.parallel.windows.windowed_denoiser import Predictor, WindowedDenoiser

__all__ = ["Predictor", "WindowGrid", "WindowedDenoiser", "decode_by_rows", "seam_ratio"]
