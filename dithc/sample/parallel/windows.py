"""Windows over scenes larger than the input of a network or decoder.

Contents: `WindowGrid` places windows, `WindowedDenoiser` wraps a network for scene latents, `decode_by_rows` yields the image by
rows. Invariants: every rank sums windows in grid order; no complete decoded scene is in
memory. Extending: window weights are in `window_weights`; another traversal is another callable around the network.

Decoding: if a codec has a bounded receptive field (`reach`: convolutions only), tiles are decoded with a margin that is cropped,
and the image equals the decoded complete latent up to rounding. Otherwise (norms over the image, attention) no bounded
decoding is equal: tiles of the network's image size overlap by half and are blended.
Sources: Bar-Tal et al. 2023 (arXiv 2302.08113): every window is denoised at each step, and overlapping predictions are
averaged. Frolov et al. 2024 (arXiv 2407.15507): windows need not overlap, and the grid shifts from step to step.

Legend: N scenes per call, Z latent channels, H, W latent of a scene; h, w window, W windows of a scene, n windows of a batch; C
bands, f factor of the codec, P rows of pixels of a tile.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from dithc.latents import Codec
from dithc.sample.parallel.rank_set import SINGLE, RankSet
from dithc.sample.seeds import MASK_64

WithNoise = Callable[[Tensor, tuple[int, int]], Tensor]
"""Function of crops (N, Z, h, w) and their origin that appends channels of noise."""


@dataclass(frozen=True, kw_only=True)
class WindowGrid:
    """Window layout of a scene, equal for all scenes and ranks."""

    size: tuple[int, int]  # H, W
    window: tuple[int, int]  # h, w; not larger than the scene
    overlap: float = 0.0  # minimum shared fraction of a window's side; below 1
    shift: bool = False  # whether the grid moves between timesteps, by less than the stride
    seed: int = 0  # seed of the moves, each a function of (seed, timestep)
    origin: tuple[int, int] = (0, 0)  # place of this part in a larger scene with the same grid

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
            offsets = [int(draw) for draw in draws]
        offsets = [
            (offset + first) % stride for offset, first, stride in zip(offsets, self.origin, self.strides, strict=True)
        ]
        rows, columns = (
            window_starts(length, side, stride=stride, offset=offset)
            for length, side, stride, offset in zip(self.size, self.window, self.strides, offsets, strict=True)
        )
        return rows, columns

    @property
    def num_windows(self) -> int:
        """Number W of windows of an unshifted grid at the origin; another may have one more per axis."""
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


Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (N, Z, h, w), timesteps (N), labels (N)) -> output (N, Z or 2Z, h, w) fp32."""


class WindowedDenoiser:
    """Network for samplers on scenes, `(x (N, Z, H, W), t (N), y (N)) -> (N, Z or 2Z, H, W)`.

    Windows are rows of the network's batches, shared like other rows, and summed in grid order. The bits depend neither
    on ranks nor on `batch` if those of a row do not. A single window is returned unchanged. `last` holds the start rows
    and columns of the last call's windows.
    """

    def __init__(self, denoise: Predictor, grid: WindowGrid, *, batch: int) -> None:
        """Wrap a network, called with at most `batch` rows of the window size."""
        self._denoise, self._grid, self._batch = denoise, grid, batch
        self.last: tuple[list[int], list[int]] = ([0], [0])

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the output for x (N, Z, H, W), equal timesteps t (N) and labels y (N)."""
        (height, width), (rows, columns) = self._grid.window, self._grid.starts(float(t[0]))
        self.last = rows, columns
        row_weights = window_weights(rows, height, self._grid.size[0])
        column_weights = window_weights(columns, width, self._grid.size[1])
        windows = list(product(range(len(x)), range(len(rows)), range(len(columns))))
        result: Tensor | None = None
        for first in range(0, len(windows), self._batch):
            part = windows[first : first + self._batch]
            scene_index = torch.tensor([scene for scene, _, _ in part])
            crops = [_window(x[scene], rows[i], columns[j], height, width) for scene, i, j in part]
            outputs = self._denoise(torch.stack(crops), t[scene_index], y[scene_index])  # (n, Z or 2Z, h, w)
            if result is None:
                result = outputs.new_zeros(len(x), outputs.shape[1], *x.shape[2:])
            for (scene, i, j), output in zip(part, outputs, strict=True):
                target = _window(result[scene], rows[i], columns[j], height, width)
                target += output * (row_weights[i][:, None] * column_weights[j])
        assert result is not None, "a call without scenes"
        return result


def _window(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    return x[:, top : top + height, left : left + width]


@dataclass(frozen=True)
class TileSpan:
    """Tile along an axis: latent positions first..end, and its pixel weights (f (end - first))."""

    first: int
    end: int
    weight: Tensor


def spans(length: int, side: int, *, factor: int, reach: int | None) -> list[TileSpan]:
    """Return the tiles along an axis of a latent; the weights of each pixel sum to 1."""
    if reach is None:
        starts = window_starts(length, side, stride=max(1, side // 2))
        weights = window_weights([first * factor for first in starts], side * factor, length * factor)
        return [TileSpan(first, first + side, weight) for first, weight in zip(starts, weights, strict=True)]
    tiles = []
    for inner in range(0, length, side):
        first, end = max(0, inner - reach), min(length, inner + side + reach)
        positions = torch.arange(first, end)
        counts = (positions >= inner) & (positions < inner + side)
        tiles.append(TileSpan(first, end, counts.float().repeat_interleave(factor)))
    return tiles


@torch.no_grad()
def decode_by_rows(
    codec: Codec, latent: Tensor, *, tile: tuple[int, int], ranks: RankSet = SINGLE, with_noise: WithNoise | None = None
) -> Iterator[Tensor]:
    """Yield the image of a latent (Z, H, W) in row blocks (C, rows, f W) on the first rank; no blocks on others.

    `tile` is at most the size of the latent; all ranks must exhaust the iterator. Memory holds one row of tiles. The
    layout depends on the sizes only, so the number of ranks does not change any bit. `with_noise` appends the decoder's noise
    to crops of the latent.
    """
    f, finished, width = codec.downsampling_factor, 0, latent.shape[2] * codec.downsampling_factor
    rows, columns = (
        spans(length, side, factor=f, reach=codec.reach) for length, side in zip(latent.shape[1:], tile, strict=True)
    )
    pending: Tensor | None = None  # (C, rows, f W): from row `finished` on, to which later tiles may add
    for number, row in enumerate(rows):
        block: Tensor | None = None
        for column, pixels in _tiles(codec, latent, row, columns, ranks=ranks, with_noise=with_noise):
            if block is None:
                block = pixels.new_zeros(len(pixels), row.end * f - finished, width)
                if pending is not None:
                    block[:, : pending.shape[1]] = pending
            target = block[:, row.first * f - finished :, column.first * f : column.end * f]
            target += pixels * (row.weight[:, None] * column.weight)
        if block is None:
            continue
        until = rows[number + 1].first * f if number + 1 < len(rows) else row.end * f
        if until > finished:
            yield block[:, : until - finished]
        pending, finished = block[:, until - finished :].clone(), max(finished, until)


def _tiles(
    codec: Codec,
    latent: Tensor,
    row: TileSpan,
    columns: Sequence[TileSpan],
    *,
    ranks: RankSet,
    with_noise: WithNoise | None,
) -> Iterator[tuple[TileSpan, Tensor]]:
    """Yield the tiles of a row in order, (C, P, f columns), on the first rank; none on others."""
    f = codec.downsampling_factor
    widest = max(column.end - column.first for column in columns) * f
    for first in range(0, len(columns), ranks.size):
        part = columns[first : first + ranks.size]
        local = torch.empty(0)
        if ranks.rank < len(part):
            column = part[ranks.rank]
            crop = latent[None, :, row.first : row.end, column.first : column.end].contiguous()
            if with_noise is not None:
                crop = with_noise(crop, (row.first, column.first))
            tile = codec.decode(crop).float()
            local = tile.new_zeros(*tile.shape[:3], widest)  # of equal shape on all ranks
            local[..., : tile.shape[3]] = tile
        tiles = ranks.gather(local, [int(rank < len(part)) for rank in range(ranks.size)])
        if tiles is not None:
            for column, tile in zip(part, tiles, strict=True):
                yield column, tile[..., : column.weight.numel()]
