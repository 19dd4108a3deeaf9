"""Pixel statistics of multispectral images in the units of the dataset: bands, indices, sums and spectra.

Contents: `measure.py` computes the statistics of a set of images, `file` stores them, `multispectral` compares two sets.

Invariants: a comparison requires neither torch nor images, only the files.

Extending: another index is a line of `roles.py`.
"""

from dithc.evaluate.pixels import file, multispectral

__all__ = ["file", "multispectral"]
