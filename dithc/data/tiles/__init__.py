"""Stage `tiles`: cut scenes into tiles, filter them, assign splits, and compute statistics.

Contents: `cut_tiles` (in `cut.py`, which takes a second to import) writes a dataset. `Tiles` reads it, `Rows` selects from
it, and `Stretch` maps it to [-1, 1] and to RGB images.

Invariants: every rejected tile has a row with its reason. Statistics are exact and computed from train tiles only.

Extending: measurements of tiles belong in `windows.py`, conditions in `conditions.py`.
"""

from dithc.data.tiles.reading import Rows, Stretch, Tiles

__all__ = ["Rows", "Stretch", "Tiles"]
