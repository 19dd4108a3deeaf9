"""Mosaics of generated images and real tiles in true and false colors, at stages of training, and their spectra.

Contents: `galleries` arranges the first images of each evaluation and random tiles of its dataset as mosaics with
title, caption and text alternative. `preview_rows` are a preview. `measure_spectra` measures values by band and power by
frequency of these images. `restoration_gallery` and `draw_restoration` show restored scenes.

Invariants: images are not selected by hand: the first images of each evaluation, and tiles drawn with the seed of the
experiment. Both sides have the same stretch. A file is verified against its manifest. Missing images are omitted, with
the reason.

Extending: another composite of bands is a line of `COMPOSITES`, another row of mosaics a function in `gallery.py`.
"""

from dithc.report.galleries.gallery import FALSE_COLORS, Gallery, Mosaic, galleries, preview_rows
from dithc.report.galleries.restorations import draw_restoration, restoration_gallery
from dithc.report.galleries.spectra import measure_spectra

__all__ = [
    "FALSE_COLORS",
    "Gallery",
    "Mosaic",
    "draw_restoration",
    "galleries",
    "measure_spectra",
    "preview_rows",
    "restoration_gallery",
]
