"""Decoding of a scene's latent by rows of tiles, on all ranks.

If a codec has a bounded receptive field (`reach`: convolutions only), tiles are decoded with a margin that is cropped,
and the image equals the decoded complete latent up to rounding. Otherwise (norms over the image, attention) no bounded
decoding is equal: tiles of the network's image size overlap by half and are blended.
Z latent channels, H, W latent of a scene; C bands, f factor of the codec, P rows of pixels of a tile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dithc.latents import Codec
from dithc.sample.parallel.rank_set import RankSet
from dithc.sample.parallel.windows.window_grid import window_starts, window_weights

SINGLE = RankSet()


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
def decode_by_rows(codec: Codec, latent: Tensor, *, tile: tuple[int, int], ranks: RankSet = SINGLE) -> Iterator[Tensor]:
    """Yield the image of a latent (Z, H, W) in row blocks (C, rows, f W) on the first rank; no blocks on others.

    `tile` is at most the size of the latent; all ranks must exhaust the iterator. Memory holds one row of tiles. The
    layout depends on the sizes only, so the number of ranks does not change any bit.
    """
    f, finished, width = codec.downsampling_factor, 0, latent.shape[2] * codec.downsampling_factor
    rows, columns = (
        spans(length, side, factor=f, reach=codec.reach) for length, side in zip(latent.shape[1:], tile, strict=True)
    )
    pending: Tensor | None = None  # (C, rows, f W): from row `finished` on, to which later tiles may add
    for number, row in enumerate(rows):
        block: Tensor | None = None
        for column, pixels in _tiles(codec, latent, row, columns, ranks=ranks):
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
    codec: Codec, latent: Tensor, row: TileSpan, columns: Sequence[TileSpan], *, ranks: RankSet
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
            tile = codec.decode(crop).float()
            local = tile.new_zeros(*tile.shape[:3], widest)  # of equal shape on all ranks
            local[..., : tile.shape[3]] = tile
        tiles = ranks.gather(local, [int(rank < len(part)) for rank in range(ranks.size)])
        if tiles is not None:
            for column, tile in zip(part, tiles, strict=True):
                yield column, tile[..., : column.weight.numel()]
