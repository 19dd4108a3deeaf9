"""Stage `tiles`: cut scenes into tiles, filter them, assign splits, and compute statistics.

Contents: `cut_tiles` writes a dataset. `Tiles` reads it, `Rows` selects from it, and `BandScaling` maps it to [-1, 1] and
to RGB images.

Invariants: every rejected tile has a row with its reason. Statistics are exact and computed from train tiles only.

Extending: measurements of tiles belong in `windows.py`, conditions in `conditions.py`, and their
maps to numbers in `condition_maps.py`.
"""

from typing import TYPE_CHECKING

from dithc.data.tiles.reading import BandScaling, Rows, Tiles

if TYPE_CHECKING:
    from dithc.data.tiles.tile_scenes import cut_tiles

__all__ = ["BandScaling", "Rows", "Tiles", "cut_tiles"]


def __getattr__(name: str) -> object:
    if name != "cut_tiles":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.data.tiles.tile_scenes import cut_tiles  # takes a second, which readers do not need

    globals()[name] = cut_tiles
    return cut_tiles
