"""The stage `tiles`: scenes cut into tiles of one size, judged, split by place, measured; and data sets of tiles, read back.

What: `cut_tiles` writes a data set; `Tiles` reads it, `Rows` choose from it, `Stretch` is its map to [-1, 1] and to pictures.
Invariants: a tile that is left out is a row with its reason; statistics are exact and of the train tiles alone.
How to change it: what is measured of a tile is in `windows.py`, what travels with it in `conditions.py`.
"""

from typing import TYPE_CHECKING

from dithc.data.tiles.reading import Rows, Stretch, Tiles

if TYPE_CHECKING:
    from dithc.data.tiles.cut import cut_tiles

__all__ = ["Rows", "Stretch", "Tiles", "cut_tiles"]


def __getattr__(name: str) -> object:
    if name != "cut_tiles":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.data.tiles.cut import cut_tiles  # takes a second, which reading does without

    globals()[name] = cut_tiles
    return cut_tiles
