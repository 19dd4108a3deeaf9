"""Stage `tiles`: cut scenes into tiles, filter them, assign splits, and compute statistics.

Contents: `tile_scenes.cut_tiles` writes a dataset. `Tiles` reads it, `Rows` selects from it, and `BandScaling` maps it to
[-1, 1] and to RGB images. The package does not import `tile_scenes`, which readers of tiles do not need.

Invariants: every rejected tile has a row with its reason. Statistics are exact and computed from train tiles only.

Extending: measurements of tiles belong in `windows.py`, conditions in `conditions.py`, and their
maps to numbers in `condition_maps.py`.
"""

from dithc.data.tiles.reading import BandScaling, Rows, Tiles

__all__ = ["BandScaling", "Rows", "Tiles"]
