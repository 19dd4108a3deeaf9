"""Geographic assignment of tiles: Earth cells, splits, and joining of tiles that look the same.

Contents: `Splitter` assigns the cells of `EarthGrid` to splits. `place_tiles` places a lattice of tiles on a scene.
`NearDuplicates` finds tiles that look the same.

Invariants: place and seed determine the split. New scenes do not change it, and every cell is in one split.

Extending: further split rules belong in `split.py`, as pure functions.
"""

from dithc.data.splits.equal_area_grid import EarthGrid, Ints
from dithc.data.splits.near_duplicates import NearDuplicates
from dithc.data.splits.split import SPLITS, Splits, Splitter, TilePlacement, place_tiles

__all__ = ["SPLITS", "EarthGrid", "Ints", "NearDuplicates", "Splits", "Splitter", "TilePlacement", "place_tiles"]
