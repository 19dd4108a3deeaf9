"""Data preparation: scenes are ingested, cut into tiles, and read back for training.

Contents: `ingest_scenes` reads every file of a source onto one grid. `cut_tiles` cuts scenes, assigns splits by place and
measures statistics. `Tiles` reads the tiles back, and `BandScaling` holds their fixed maps. `products` exports images with
bands, units and georeference. `synthesize` generates inputs. Each stage writes a folder of memory-mapped arrays and a table.

Invariants:
- A file that cannot be trusted becomes a row with its reason; no file is skipped silently.
- Offsets come from metadata or from the configuration. They are never guessed.
- Places decide the split, so that all dates and overlaps of a place are in one split.
- Statistics, scaling and display stretch are fixed per dataset and computed from train tiles only.
- User files are checked before use: only regular files are opened, and sizes are compared with the memory before
  allocation. GDAL reads no sidecar files, and only `stac` accesses the network.
- torch is not imported.

Extending: a new `kind` of source is a model in dithc.config.schema.datasets and a reader in `readers/`. A new reason is a
member of `scene.Reason`. Names are imported on first use, so that reading tiles does not import scene readers.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dithc.data import products
    from dithc.data.images import downsample, mosaic, write_png
    from dithc.data.scenes.ingest import ingest_scenes
    from dithc.data.synthetic import synthesize
    from dithc.data.tiles import BandScaling, Rows, Tiles
    from dithc.data.tiles.tile_scenes import cut_tiles

# Drivers that access the network or other files. GDAL reads the list when it registers drivers, after any import of rasterio.
os.environ["GDAL_SKIP"] = "HTTP WMS WMTS WCS STACIT STACTA EEDA EEDAI PLMOSAIC DAAS VRT GTI MRF KMLSUPEROVERLAY"
_MODULES = {
    **dict.fromkeys(("BandScaling", "Rows", "Tiles"), "tiles"),
    **dict.fromkeys(("downsample", "mosaic", "write_png"), "images"),
    "cut_tiles": "tiles.tile_scenes",
    "ingest_scenes": "scenes.ingest",
    "products": "products",
    "synthesize": "synthetic",
}

__all__ = [
    "BandScaling",
    "Rows",
    "Tiles",
    "cut_tiles",
    "downsample",
    "ingest_scenes",
    "mosaic",
    "products",
    "synthesize",
    "write_png",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value: object = module if name == _MODULES[name] else getattr(module, name)
    globals()[name] = value
    return value
