"""The image of a scene's latent, by rows: decoded tile by tile, the tiles of a row by all ranks.

Where a codec says how far its decoder sees (`reach`: convolutions alone), a tile is decoded with what lies around it and cut off
again: the image is that of the whole latent, to rounding. Where its decoder sees everything (norms over the image, attention) no
decoding in bounded memory equals the whole one: tiles as large as the network's own images overlap by half, and fade into each
other.

Legend: Z latent channels, H, W latent of a scene; C bands, f factor of the codec, P rows of pixels of a tile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dithc.parallel.ranks import Ranks
from dithc.parallel.windows.grid import firsts, shares

ALONE = Ranks()


class Decoder(Protocol):
    """What is needed of a codec."""

    @property
    def factor(self) -> int:
        """Side of an image over side of its latent."""

    @property
    def reach(self) -> int | None:
        """Places of a latent on each side of one that its pixels depend on; None for all of them."""

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents (N, Z, h, w) to images (N, C, H, W)."""


@dataclass(frozen=True)
class Span:
    """A tile along an axis: places first..end of the latent, and what each of its pixels counts (f (end - first))."""

    first: int
    end: int
    share: Tensor


def spans(length: int, side: int, *, factor: int, reach: int | None) -> list[Span]:
    """The tiles along an axis of a latent; of all tiles each pixel counts 1."""
    if reach is None:
        begins = firsts(length, side, stride=max(1, side // 2))
        of_pixels = shares([first * factor for first in begins], side * factor, length * factor)
        return [Span(first, first + side, share) for first, share in zip(begins, of_pixels, strict=True)]
    found = []
    for inner in range(0, length, side):
        first, end = max(0, inner - reach), min(length, inner + side + reach)
        places = torch.arange(first, end)
        counts = (places >= inner) & (places < inner + side)
        found.append(Span(first, end, counts.float().repeat_interleave(factor)))
    return found


@torch.no_grad()
def decoded(codec: Decoder, latent: Tensor, *, tile: int, ranks: Ranks = ALONE) -> Iterator[Tensor]:
    """The image of a latent from its first row to its last, some rows at a time, on the first rank; on the others nothing.

    In memory are the tiles of one row. How it is cut follows from the sizes alone, so ranks change no bit.

    Args:
        codec: what decodes.
        latent: (Z, H, W), scaled, on every rank.
        tile: side of a tile in the latent; not larger than it.
        ranks: who decode the tiles of a row together; all are to exhaust what is returned.

    Yields:
        (C, rows, f W) each.
    """
    rows, columns = (spans(length, tile, factor=codec.factor, reach=codec.reach) for length in latent.shape[1:])
    f, width, done = codec.factor, latent.shape[2] * codec.factor, 0
    open_rows: Tensor | None = None  # (C, rows, f W): from row `done` on, to which later tiles may add
    for number, row in enumerate(rows):
        band = _band(codec, latent, row, columns, width=width, ranks=ranks)
        if band is None:
            continue
        grown = band.new_zeros(len(band), row.end * f - done, width)
        if open_rows is not None:
            grown[:, : open_rows.shape[1]] = open_rows
        grown[:, row.first * f - done :] += band * row.share[:, None]
        until = rows[number + 1].first * f if number + 1 < len(rows) else row.end * f
        if until > done:
            yield grown[:, : until - done]
        open_rows, done = grown[:, until - done :], until


def _band(
    codec: Decoder, latent: Tensor, row: Span, columns: Sequence[Span], *, width: int, ranks: Ranks
) -> Tensor | None:
    """The tiles of a row beside each other (C, P, f W), on the first rank."""
    band: Tensor | None = None
    f = codec.factor
    widest = max(column.end - column.first for column in columns) * f
    for first in range(0, len(columns), ranks.size):
        part = columns[first : first + ranks.size]
        mine = torch.empty(0)
        if ranks.rank < len(part):
            column = part[ranks.rank]
            tile = codec.decode(latent[None, :, row.first : row.end, column.first : column.end].contiguous()).float()
            mine = tile.new_zeros(*tile.shape[:3], widest)  # of one shape on all ranks
            mine[..., : tile.shape[3]] = tile
        tiles = ranks.collected(mine, [int(rank < len(part)) for rank in range(ranks.size)])
        for column, tile in zip(part, () if tiles is None else tiles, strict=tiles is not None):
            if band is None:
                band = tile.new_zeros(*tile.shape[:2], width)
            here = slice(column.first * f, column.end * f)
            band[..., here] += tile[..., : column.share.numel()] * column.share
    return band
