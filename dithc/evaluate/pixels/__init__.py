"""Pixel statistics of multispectral images in the units of the dataset: bands, indices, sums and spectra.

Contents: `pixel_statistics` computes the statistics of a set of images, `pixel_file` stores them, `multispectral` compares two
sets.

Invariants: a comparison requires neither torch nor images, only the files.

Extending: another index is a line of `band_roles.py`.
"""

from typing import TYPE_CHECKING, Any

from dithc.evaluate.pixels import multispectral, pixel_file

if TYPE_CHECKING:
    from dithc.evaluate.pixels.pixel_statistics import measure_pixels

__all__ = ["measure_pixels", "multispectral", "pixel_file"]


def __getattr__(name: str) -> Any:
    if name != "measure_pixels":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.evaluate.pixels.pixel_statistics import measure_pixels  # needs torch, which comparisons do not need

    globals()[name] = measure_pixels
    return measure_pixels
