"""Pixel statistics of multispectral images in the units of the dataset: bands, indices, sums and spectra.

Contents: `measure` computes the statistics of a set of images, `file` stores them, `multispectral` compares two sets.

Invariants: a comparison requires neither torch nor images, only the files.

Extending: another index is a line of `roles.py`.
"""

from typing import TYPE_CHECKING, Any

from dithc.evaluate.pixels import file, multispectral

if TYPE_CHECKING:
    from dithc.evaluate.pixels.measure import measure

__all__ = ["file", "measure", "multispectral"]


def __getattr__(name: str) -> Any:
    if name != "measure":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.evaluate.pixels.measure import measure  # needs torch, which comparisons do not need

    globals()[name] = measure
    return measure
