"""Outputs of stages as arrays with names, units and georeference, and as files for other programs.

Purpose: shards contain numbers in [-1, 1] without names, for training. Other programs need physical values.
Contents: `open_stage.open_stage` opens a stage with arrays (scenes, tiles, latents, samples, features, restorations) as
xarray objects that are read on access. Only it and `lazy_arrays` import xarray, which other commands do not need.
`GeneratedImages` returns samples in the units of their dataset. `export_images` exports generated
images or real tiles as cloud-optimized GeoTIFF.
Invariants: values are the inverse of the dataset's scaling, in the integer type of its source, each within half a step.
Values beyond this type are clipped and counted. Real tiles have the coordinate system of their scene. Generated images
have none; generated scenes have a local grid in meters, and are read and written by rows. Inputs of a manifest are
identified by their digests. An export folder appears complete, with its manifest, or not at all.
Extending: a stage with arrays is a function in `open_stage.py`. xarray writes other formats, such as NetCDF and zarr.
"""

from dithc.data.export.export_images import export_images
from dithc.data.export.find_inputs import find_input
from dithc.data.export.generated import GeneratedImages
from dithc.data.export.shards import Read, taken

__all__ = [
    "GeneratedImages",
    "Read",
    "export_images",
    "find_input",
    "taken",
]
