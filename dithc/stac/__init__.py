"""Sentinel-2 scenes of catalogues: what a STAC item says of a scene, and items searched, fetched and pinned.

What: `read_item` reads one item, STAC 1.0 or 1.1, and finds its bands by asset keys or names of bands; `chosen` says which assets
serve a grid; `fetch` searches a catalogue, pins what it found in `lock.json` and brings items and assets into a folder; `Lock`
reads that back.
Why: every catalogue names the same bands otherwise; and this is the only room that goes to a network, which staging never does.
Invariants: a file with its final name is whole, by its length and by its checksum where there is one; a lock names all that was
found, so that nothing is missing unseen, and a second fetch asks for nothing; credentials come from the environment, go to the
catalogue's host and to those that are named beside them, and stand in no file, message or log; addresses are kept without their
queries; no name that a catalogue gives becomes a path, and a lock that anybody wrote names files of its scenes' folders alone.
How to change it: another naming of bands is a line in `item.py`; pystac-client, which need not be installed, enters in
`catalogue.py` alone.
"""

from dithc.stac.fetch import fetch
from dithc.stac.item import OWN_GSD_M, Asset, Item, chosen, read_item
from dithc.stac.lock import Lock

__all__ = ["OWN_GSD_M", "Asset", "Item", "Lock", "chosen", "fetch", "read_item"]
