"""Latents as an xarray.DataArray, for `dithc.open`."""

from pathlib import Path

import numpy as np

from dithc.core.artifacts import Manifest
from dithc.data.export import Read, taken
from dithc.data.export.lazy_arrays import variable
from dithc.data.export.open_stage import StageArrays, along
from dithc.latents.reader import Latents

DIMS = ("image", "moment", "channel", "y", "x")


def open_latents(path: Path, manifest: Manifest, _: int | None) -> StageArrays:
    """Return latents of tiles, not scaled: (image, moment, channel, y, x) float16, read on access."""
    latents = Latents(path.parent)
    moments = ["mean", "logvar"] if latents.has_logvar else ["mean"]
    shape = (latents.count, len(moments), *latents.shape)
    names = np.empty(latents.count, dtype=object)
    for split in ("train", "val", "test"):
        names[latents.rows(split)] = split
    coordinates = along({"label": latents.labels, "split": names.tolist()}) | {"moment": moments}
    array = variable(DIMS, shape, np.float16, (path, manifest), _read_moments)
    return StageArrays(array, coordinates, {"scale": latents.scale, "codec": latents.info["codec"]})


def _read_moments(path: Path, _: Manifest) -> Read:
    latents = Latents(path.parent)
    moments = 1 + latents.has_logvar
    return lambda rows, rest: taken(latents.moments(rows).reshape(len(rows), moments, *latents.shape), rest)
