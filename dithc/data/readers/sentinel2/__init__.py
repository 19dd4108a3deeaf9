"""Readers of Sentinel-2: SAFE products, STAC items and arrays.

Contents: `safe` reads products (`safe_metadata`, `safe_files`, `safe_grid`, `zip_products`), `stac` downloaded items
(`stac_scaling`), `arrays` files without metadata, `clouds` masks, which other readers use too.
Invariants: scale and offset come from the metadata or the configuration. STAC items and arrays are compared with their
pixels (`check_offset`). An offset is applied exactly once.
Extending: a new delivery form is a module with a reader, and a row in `readers.READERS`.
"""

from dithc.data.readers.sentinel2.arrays import Sentinel2ArrayReader
from dithc.data.readers.sentinel2.clouds import SceneMasks
from dithc.data.readers.sentinel2.safe import SafeReader
from dithc.data.readers.sentinel2.stac import StacReader

__all__ = ["SafeReader", "SceneMasks", "Sentinel2ArrayReader", "StacReader"]
