"""What an evaluation asks for beside FID, KID and copies (`metrics`), each of both sides' features or pixels."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.distances import fid_interval, neighbours
from dithc.evaluate.pixels import file, multispectral
from dithc.evaluate.statistics import Origin, Statistics
from dithc.log import problem

OF_NEIGHBOURS = {"precision-recall": ("precision", "recall"), "density-coverage": ("density", "coverage")}
OF_PIXELS = {
    "bands": multispectral.of_bands,
    "indices": multispectral.of_indices,
    "spectra": multispectral.of_spectra,
}
CURVES = ("power", "correlation", "histogram")  # many numbers, for a file beside the score


class Side(NamedTuple):
    """A set of features: where it stands, and what is there: from a file of statistics nothing else."""

    folder: Path
    statistics: Statistics
    blocks: Sequence[NDArray[np.floating]] = ()
    clipped: float | None = None

    @property
    def n(self) -> int:
        """Number of images."""
        return self.statistics.n

    @property
    def origin(self) -> Origin:
        """What they are features of."""
        return self.statistics.origin


def beside(real: Side, generated: Side, *, metrics: Collection[str], fid: float) -> dict[str, Any]:
    """Return the values of these metrics, and `curves`; raise UserError if features or pixels are missing or a set is small."""
    numbers: dict[str, Any] = {}
    if not metrics:
        return numbers
    if not (real.blocks and generated.blocks):
        raise problem(
            f"metrics {', '.join(metrics)} cannot be had",
            got="statistics alone",
            expected="two folders that the features stage wrote",
            fix="pass the folders, or leave `metrics` out",
        )
    if "interval" in metrics:
        numbers["fid_interval"] = fid_interval(
            fid, real.statistics, real.blocks, generated.statistics, generated.blocks
        )
    if any(name in metrics for name in OF_NEIGHBOURS):
        found = neighbours(real.blocks, generated.blocks)
        wanted = [name for metric, names in OF_NEIGHBOURS.items() if metric in metrics for name in names]
        numbers |= {name: getattr(found, name) for name in wanted}
    if any(name in metrics for name in OF_PIXELS):
        pixels = [file.read(side.folder) for side in (real, generated)]
        told = {name: of(*pixels) for name, of in OF_PIXELS.items() if name in metrics}
        numbers["pixels"] = {name: _without_curves(one) for name, one in told.items()}
        numbers["curves"] = {"band_names": list(pixels[0].bands), **told}
    return numbers


def _without_curves(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_curves(part) for name, part in value.items() if name not in CURVES}
