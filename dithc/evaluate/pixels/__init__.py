"""Pixel statistics of multispectral images in the units of the dataset: bands, indices, sums and spectra.

Contents: `pixel_statistics` computes the statistics of a set of images, `pixel_file` stores them, `multispectral` compares two
sets.

Invariants: a comparison requires neither torch nor images, only the files.

Extending: another index is a line of `band_roles.py`.
"""

from dithc.evaluate.pixels import multispectral, pixel_file
from dithc.evaluate.pixels.pixel_statistics import measure_pixels
from dithc.evaluate.pixels.spectra import log_spectral_distance, radial_power

__all__ = ["log_spectral_distance", "measure_pixels", "multispectral", "pixel_file", "radial_power"]
