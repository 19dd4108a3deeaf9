"""Where on Earth a tile is, and what follows: its cell, its split, tiles near it or like it.

What: `Splitter` puts cells of `EarthGrid` into splits, `place_tiles` lays a lattice over a scene, `Near` finds tiles that look
the same.
Invariants: a split follows from the place and the seed: more scenes move none, and no cell is in two splits.
How to change it: another rule of splitting is in `split.py`, pure.
"""

from dithc.data.places.earth import EarthGrid, Ints
from dithc.data.places.near import Near
from dithc.data.places.placing import Placed, place_tiles
from dithc.data.places.split import SPLITS, Splits, Splitter

__all__ = ["SPLITS", "EarthGrid", "Ints", "Near", "Placed", "Splits", "Splitter", "place_tiles"]
