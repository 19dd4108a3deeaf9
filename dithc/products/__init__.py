"""Outputs of stages as arrays with names, units and georeference, and as files for other programs.

Purpose: shards contain numbers in [-1, 1] without names, for training. Other programs need physical values.
Contents: `read` opens a stage with arrays (scenes, tiles, latents, samples, features) as an xarray.DataArray that is
read on access. `Generated` returns samples in the units of their dataset. `write` exports generated images or real
tiles as cloud-optimized GeoTIFF or zarr.
Invariants: values are the inverse of the dataset's scaling, in the integer type of its source, each within half a step.
Values beyond this type are clipped and counted. Real tiles have the coordinate system of their scene. Generated images
have none; generated scenes have a local grid in meters, and are read and written by rows. Inputs of a manifest are
identified by their digests. An export folder appears complete, with its manifest, or not at all. Only `zarr_store.py`
imports zarr, an optional dependency.
Extending: a stage with arrays is a function in `reading.py`. A format is a module like `zarr_store.py` and a value of
`writing.Format`.
"""

from dithc.products.generated import Generated
from dithc.products.inputs import input_of
from dithc.products.reading import read
from dithc.products.ro_crate import write_ro_crate
from dithc.products.writing import write

__all__ = ["Generated", "input_of", "read", "write", "write_ro_crate"]
