"""Figures drawn from records. Only this package imports matplotlib.

Contents: `FIGURES` draws each figure of the report from its facts. `spectra` draws one dataset, `single` one given
file, `quality` a comparison of runs, `canvas` is their common base.

Invariants: a figure is a pure function of records. No text is cut or covers another. Color-blind readers can
distinguish the colors. A missing result is named. Figures have a white background, which light and dark pages share.

Extending: a new figure is a file with a function of (facts), and a line in `every.py`.
"""

from dithc.report.figures import canvas, quality, single, spectra, theme
from dithc.report.figures.every import FIGURES

__all__ = ["FIGURES", "canvas", "quality", "single", "spectra", "theme"]
