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
Extending: a stage with arrays is a function in `open_stage.py`. A format is a module like `zarr_store.py` and a value of
`export_images.Format`.
"""

from dithc.data.export.export_images import write
from dithc.data.export.find_inputs import input_of
from dithc.data.export.generated import Generated
from dithc.data.export.lazy_arrays import Read, taken, variable
from dithc.data.export.open_stage import Content, along, read
from dithc.data.export.ro_crate import write_ro_crate

__all__ = ["Content", "Generated", "Read", "along", "input_of", "read", "taken", "variable", "write", "write_ro_crate"]
