"""Optional metrics of an evaluation besides FID, KID and copies, from the features or pixels of both sets."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.distances import fid_interval, neighbours
from dithc.evaluate.pixels import file, multispectral
from dithc.evaluate.statistics import Origin, Statistics

OF_NEIGHBOURS = {"precision-recall": ("precision", "recall"), "density-coverage": ("density", "coverage")}
OF_PIXELS = {
    "bands": multispectral.of_bands,
    "indices": multispectral.of_indices,
    "spectra": multispectral.of_spectra,
}
CURVES = ("power", "correlation", "histogram")  # many numbers, for a separate file


class Side(NamedTuple):
    """A folder of features and its content."""

    folder: Path
    statistics: Statistics
    blocks: Sequence[NDArray[np.floating]]
    clipped: float | None

    @property
    def n(self) -> int:
        return self.statistics.n

    @property
    def origin(self) -> Origin:
        return self.statistics.origin


def beside(real: Side, generated: Side, *, metrics: Collection[str], fid: float) -> dict[str, Any]:
    """Return the values of `metrics`, and `curves`.

    Raises:
        UserError: pixels are missing, or a set is too small.
    """
    numbers: dict[str, Any] = {}
    if "interval" in metrics:
        numbers["fid_interval"] = fid_interval(
            fid, real.statistics, real.blocks, generated.statistics, generated.blocks
        )
    if any(name in metrics for name in OF_NEIGHBOURS):
        shares = neighbours(real.blocks, generated.blocks)
        wanted = [name for metric, names in OF_NEIGHBOURS.items() if metric in metrics for name in names]
        numbers |= {name: getattr(shares, name) for name in wanted}
    if any(name in metrics for name in OF_PIXELS):
        pixels = [file.read(side.folder) for side in (real, generated)]
        found = {name: of(*pixels) for name, of in OF_PIXELS.items() if name in metrics}
        numbers["pixels"] = {name: _without_curves(one) for name, one in found.items()}
        numbers["curves"] = {"band_names": list(pixels[0].bands), **found}
    return numbers


def _without_curves(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_curves(part) for name, part in value.items() if name not in CURVES}
