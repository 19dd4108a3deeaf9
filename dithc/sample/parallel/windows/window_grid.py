"""Window layout of a scene, weights of windows, and a measure of visible seams.

H, W latent of a scene; h, w window, W windows of a scene.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class WindowGrid:
    """Window layout of a scene, equal for all scenes and ranks."""

    size: tuple[int, int]  # H, W
    window: tuple[int, int]  # h, w; not larger than the scene
    overlap: float = 0.0  # minimum shared fraction of a window's side; below 1
    shift: bool = False  # whether the grid moves between timesteps, by less than the stride
    seed: int = 0  # seed of the moves, each a function of (seed, timestep)

    @property
    def strides(self) -> tuple[int, int]:
        height, width = (max(1, round(side * (1 - self.overlap))) for side in self.window)
        return height, width

    def starts(self, timestep: float) -> tuple[list[int], list[int]]:
        """Return start rows and columns of the windows at a timestep; edge windows move inward."""
        offsets = [0, 0]
        if self.shift:
            bits = int(np.float32(timestep).view(np.uint32))
            draws = np.random.SeedSequence(self.seed & MASK_64, spawn_key=(bits,)).generate_state(2, np.uint64)
            offsets = [int(draw) % stride for draw, stride in zip(draws, self.strides, strict=True)]
        rows, columns = (
            window_starts(length, side, stride=stride, offset=offset)
            for length, side, stride, offset in zip(self.size, self.window, self.strides, offsets, strict=True)
        )
        return rows, columns

    @property
    def num_windows(self) -> int:
        """Number W of windows of an unshifted grid; a shifted one may have one more per axis."""
        rows, columns = WindowGrid(size=self.size, window=self.window, overlap=self.overlap).starts(0.0)
        return len(rows) * len(columns)


def window_starts(length: int, side: int, *, stride: int, offset: int = 0) -> list[int]:
    """Return the starts of windows that cover `length`, at most `stride` apart; end windows move inward.

    `length` is at least `side`. `offset` (below `stride`) is the distance of the first start before 0.
    """
    last = length - side
    return sorted({min(max(0, first), last) for first in range(-offset, last + stride, stride)})


def window_weights(origins: Sequence[int], side: int, length: int) -> list[Tensor]:
    """Return the weights of each window along an axis, fp32 (side); they sum to 1 everywhere.

    Weights fade quadratically to the ends of a window, because equal or linear weights leave a seam in fields of known
    distribution. A single window has weight 1 exactly.
    """
    positions = torch.arange(side, dtype=torch.float64)
    weight = (torch.minimum(positions, side - 1 - positions) + 0.5) ** 2
    total = torch.zeros(length, dtype=torch.float64)
    for first in origins:
        total[first : first + side] += weight
    return [(weight / total[first : first + side]).float() for first in origins]


def seam_ratio(x: Tensor, rows: Sequence[int], columns: Sequence[int], *, window: tuple[int, int]) -> float:
    """Return the mean neighbor difference of x (..., H, W) at window borders over all others; 1 without seams.

    `rows` and `columns` are window starts, `window` is (h, w).
    """
    sums, counts = [0.0, 0.0], [0, 0]
    for axis, origins, side in ((-2, rows, window[0]), (-1, columns, window[1])):
        steps = x.double().diff(dim=axis).abs().movedim(axis, 0).flatten(1)  # (length - 1, ...)
        edges = {edge - 1 for first in origins for edge in (first, first + side)}
        is_border = torch.tensor([position in edges for position in range(len(steps))], dtype=torch.bool)
        for index, differences in enumerate((steps[is_border], steps[~is_border])):
            sums[index] += float(differences.sum())
            counts[index] += differences.numel()
    if not counts[0] or not sums[1]:
        return 1.0
    return sums[0] / counts[0] / (sums[1] / counts[1])
