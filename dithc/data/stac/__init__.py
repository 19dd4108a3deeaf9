"""Sentinel-2 scenes of STAC catalogs.

Purpose: every catalog has its own names for the same bands. Only this package uses a network; ingestion does not.
Contents: `read_item` reads an item (STAC 1.0 or 1.1) and maps its assets to bands. `select_assets` selects the assets for a
grid. `fetch_scenes` searches a catalog, records the result in `lock.json` and downloads items and assets into a folder. `Lock`
is that file.
Invariants: a file with its final name is complete, by its length and its checksum, if any. The lock lists every file,
so that missing files are detected and a second fetch sends no request. Credentials come from the environment, are sent
only to the catalog's host and to hosts that the user names, and are never stored, logged or printed. Addresses are
stored without queries. No name from a catalog becomes a path, and a lock names files in the folders of its scenes only.
Extending: a new band name is a row in `item.py`. Only `catalog.py` imports pystac-client, an optional dependency.
"""

from dithc.data.stac.fetch import fetch_scenes
from dithc.data.stac.item import OWN_GSD_M, Asset, Item, read_item, select_assets
from dithc.data.stac.lock import Lock

__all__ = ["OWN_GSD_M", "Asset", "Item", "Lock", "fetch_scenes", "read_item", "select_assets"]
