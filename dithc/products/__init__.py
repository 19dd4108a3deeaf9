"""Outputs as products: what every stage made, as arrays with names, units and places, and as files of other programs.

What: `read` opens any stage that has arrays (scenes, tiles, latents, samples, features) as an xarray.DataArray, read when it is
asked for; `Generated` gives samples in the units of their data set, by number; `write` gives generated images, or real tiles
beside them, as cloud-optimised GeoTIFF or as zarr.
Why: shards are made for training: numbers in [-1, 1] without names. Who looks at images with other tools wants reflectances.
Invariants: values are those of the inverse of the data set's own scaling, in the integers that its source is stored in, each
within half a step; what is beyond the type is clipped and counted, never wrapped; generated images have no coordinate system
(scenes a grid of metres that is nowhere, and are read and written by rows), real tiles have their own; inputs of a manifest are
found by their digests; a folder of products appears whole, with its manifest, or not at all; zarr is imported in `zarr_store.py`
alone, where it is installed.
How to change it: a stage with arrays is a function in `reading.py`; a format is a file beside `zarr_store.py`, and a word of
`writing.Format`.
"""

from dithc.products.generated import Generated
from dithc.products.inputs import input_of
from dithc.products.reading import read
from dithc.products.writing import write

__all__ = ["Generated", "input_of", "read", "write"]
