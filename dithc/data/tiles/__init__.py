"""The stage `tiles`: scenes cut into tiles of one size, judged, split by place, measured; and data sets of tiles, read back.

What: `cut_tiles` writes a data set; `Tiles` reads it, `Rows` choose from it, `Stretch` is its map to [-1, 1] and to pictures.
Invariants: a tile that is left out is a row with its reason; statistics are exact and of the train tiles alone.
How to change it: what is measured of a tile is in `windows.py`, what travels with it in `conditions.py`.
"""

from dithc.data.tiles.cut import cut_tiles
from dithc.data.tiles.reading import Rows, Stretch, Tiles

__all__ = ["Rows", "Stretch", "Tiles", "cut_tiles"]
