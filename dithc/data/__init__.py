"""Scenes to tiles: what training will learn, each step of it a folder of memory-mapped arrays and a table.

What: `stage_scenes` reads every file of a source onto one grid (one reader per kind in `readers/`; `gather.py` decides which are
read, and by which process, `kept.py` what of earlier runs is taken, `stacks.py` lays them out), `cut_tiles` cuts, splits
by place and measures, `Tiles` reads that folder back and `Stretch` holds its fixed maps; `products` reads scenes back and writes
images as other programs want them, with bands, units and places; `synthesize` generates inputs for machines without data;
`write_png` writes a picture.
Why: scenes are large, of many shapes and sometimes wrong; training wants one long array of equal samples and no surprises.
Invariants: a file that cannot be trusted is a row with its reason, never a silent skip; offsets come from metadata or are
declared, never guessed; places decide the split, so all dates and overlaps of a place go together (`earth`, `split`, `placing`;
`near` joins places that look the same); statistics, scaling and
the display stretch are fixed per data set, from train tiles only; a folder with its final name is complete; no torch here;
what a user's file says is judged before it is believed: regular files alone are opened (`files.py`), sizes compared with the
memory before anything is allocated, JPEG 2000 files followed to their end, checksums of deflated TIFF blocks
compared (`raster/`), archives of pictures read in place after every entry was judged (`tar_index.py`); GDAL reads nothing beside
a file, and no network is reached;
rasterio is imported in `raster/`, `grids.py` and `ground.py` alone, Pillow in `pictures.py`, lxml in `xml.py`, pyarrow in
`table.py`, xarray in `scene.py`.
How to change it: a new kind of source is a model in dithc.config.datasets and a module in `readers/` with its line in
`readers/__init__.py`; a new reason is a word in `scene.Reason`. Names are loaded on first use, so that reading tiles does not
load the libraries that read scenes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dithc.data import products
    from dithc.data.pictures import write_png
    from dithc.data.scenes import stage_scenes
    from dithc.data.synthetic import synthesize
    from dithc.data.tiles import Rows, Stretch, Tiles, cut_tiles

_HOMES = {
    "Rows": "tiles",
    "Stretch": "tiles",
    "Tiles": "tiles",
    "cut_tiles": "tiles",
    "products": "products",
    "stage_scenes": "scenes",
    "synthesize": "synthetic",
    "write_png": "pictures",
}

__all__ = ["Rows", "Stretch", "Tiles", "cut_tiles", "products", "stage_scenes", "synthesize", "write_png"]


def __getattr__(name: str) -> object:
    """Loads a name of the door from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    found: object = home if name == _HOMES[name] else getattr(home, name)
    globals()[name] = found
    return found
