"""Scenes to tiles to latents: the input of training, each step of it a folder of memory-mapped arrays and a table.

What: `stage_scenes` reads every file of a source onto one grid (one reader per kind in `readers/`), `cut_tiles` cuts, splits
by place and measures, `train_codec` and `open_codec` make autoencoders, `Latents.encode` writes latents; `Tiles`, `Latents` and
`Batches` read those folders back. `synthesize` generates inputs for machines without data; `write_png` writes a picture.
Why: scenes are large, of many shapes and sometimes wrong; training wants one long array of equal samples and no surprises.
Invariants: a file that cannot be trusted is a row with its reason, never a silent skip; offsets come from metadata or are
declared, never guessed; places decide the split, so all dates and overlaps of a place go together; statistics, scaling and
the display stretch are fixed per data set, from train tiles only; a folder with its final name is complete; rasterio is
imported in `raster.py` alone, Pillow in `pictures.py`, lxml in `xml.py`, pyarrow in `table.py`, xarray in `scene.py`,
diffusers in `autoencoder.py`.
How to change it: a new kind of source is a model in dithc.config.datasets and a module in `readers/` with its line in
`readers/__init__.py`; a new reason is a word in `scene.Reason`; a new codec is a branch of `open_codec`. Names are loaded on
first use, so that asking for tiles does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dithc.data.batches import Batches
    from dithc.data.codec import open_codec
    from dithc.data.codec_training import train_codec
    from dithc.data.cut import cut_tiles
    from dithc.data.latents import Latents
    from dithc.data.pictures import write_png
    from dithc.data.stage import stage_scenes
    from dithc.data.tiles import Tiles

_HOMES = {
    "Batches": "batches",
    "Latents": "latents",
    "Tiles": "tiles",
    "cut_tiles": "cut",
    "open_codec": "codec",
    "stage_scenes": "stage",
    "synthesize": "synthetic",
    "train_codec": "codec_training",
    "write_png": "pictures",
}

__all__ = [
    "Batches",
    "Latents",
    "Tiles",
    "cut_tiles",
    "open_codec",
    "stage_scenes",
    "train_codec",
    "write_png",
]


def __getattr__(name: str) -> object:
    """Loads a name of the door from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
