"""Figures drawn from records. Only this package imports matplotlib.

What: `FIGURES` draws each figure of the report from its facts; `bands`, `spectra` draw what one data set has, `single` what a
person points at, `quality` a comparison of trainings; `canvas` is what all are drawn on.
Why: a figure is a pure function of records, so that it is tested alone and the same on the page and in a file.
Invariants: no text is cut or covers another; colours are told apart by colour-blind readers; what was not run is said so.
How to change it: a new figure is a file with a function of (facts), and a line in `every.py`.
"""

from dithc.report.figures import canvas, quality, single, spectra, theme
from dithc.report.figures.every import FIGURES

__all__ = ["FIGURES", "canvas", "quality", "single", "spectra", "theme"]
