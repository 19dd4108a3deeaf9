"""Pixel statistics of a set of images, in one file next to its features.

Legend: C bands, L classes, V stored values, I indices, R rings.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest, atomic_replace, outputs
from dithc.core.logging import user_error
from dithc.evaluate.statistics import FloatArray, read_arrays

FILE = "pixels.npz"
BINS = 2000  # bins of an index from -1 to 1
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PixelStatistics:
    """Pixel statistics of a set of images; physical = stored * scale + offset, by band (C,)."""

    bands: tuple[str, ...]  # band names (C)
    units: str  # units of physical values
    scale: FloatArray
    offset: FloatArray
    first: int  # stored number of the first column of `counts`
    counts: Counts  # pixels by stored number (C, V)
    classes: Counts  # ascending labels (L,)
    class_pixels: Counts  # pixels of each class (L,)
    class_sums: Counts  # sums of stored numbers (L, C)
    products: FloatArray  # sums of products of stored numbers of two bands (C, C)
    index_names: tuple[str, ...]  # indices (I) with all bands present
    indices: Counts  # pixels by bin of [-1, 1] (I, BINS)
    undefined: Counts  # pixels with an undefined index (I,)
    power: FloatArray  # mean radial power of bands (C, R), squared physical units
    spectra: int  # number of images in `power`


def write(path: Path, pixels: PixelStatistics, identity: dict[str, Any]) -> None:
    """Write the statistics with the identity of their images."""
    arrays: dict[str, Any] = {field.name: getattr(pixels, field.name) for field in fields(pixels)}
    outputs.OutputFolder(path.parent).plan([path])
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        np.savez(file, identity=np.array(json.dumps(identity, sort_keys=True)), **arrays)


def is_of(path: Path, identity: dict[str, Any]) -> bool:
    """Test whether a readable file of these images exists."""
    try:
        return bool(json.loads(str(read_arrays(path)["identity"])) == identity)
    except (ValueError, KeyError):
        return False


def read(folder: Path) -> PixelStatistics:
    """Return the pixel statistics in a folder of features."""
    path = Manifest.verified(folder / FILE)
    try:
        arrays = read_arrays(path)
        values: dict[str, Any] = {field.name: arrays[field.name] for field in fields(PixelStatistics)}
    except (ValueError, KeyError) as error:
        raise user_error(
            f"pixels of {folder} cannot be compared",
            got=error,
            expected=f"{FILE} of `dithc features --pixel-statistics`",
            fix="rerun the features stage with --pixel-statistics",
        ) from error
    values |= {name: tuple(map(str, values[name])) for name in ("bands", "index_names")}
    values |= {"units": str(values["units"]), "first": int(values["first"]), "spectra": int(values["spectra"])}
    return PixelStatistics(**values)
