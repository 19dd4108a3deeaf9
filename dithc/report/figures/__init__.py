"""Figures drawn from records. Only this package imports matplotlib.

Contents: `FIGURES` draws each figure of the report from its records. `spectra` draws one dataset, `standalone` one given
file, `benchmarks` measurements, `canvas` is their common base.

Invariants: a figure is a pure function of records. No text is cut or covers another. Color-blind readers can
distinguish the colors. A missing result is named. Figures have a white background, which light and dark pages share.

Extending: a new figure is a file with a function of (records), and a line in `FIGURES`.
"""

from collections.abc import Callable
from functools import partial

from dithc.report.figures import canvas, spectra, standalone, theme
from dithc.report.figures.benchmarks import (
    bars,
    draw_memory,
    draw_scaling,
    draw_stepwise,
    marks,
    series,
    time_to_quality,
)
from dithc.report.figures.calibration import draw_calibration
from dithc.report.figures.pixels import draw_pixels
from dithc.report.figures.samples import draw_samples
from dithc.report.figures.scores import draw_fid
from dithc.report.figures.stages import draw_stages
from dithc.report.figures.training import draw_loss, draw_ranks, draw_throughput
from dithc.report.records import ReportRecords

__all__ = ["FIGURES", "bars", "canvas", "marks", "series", "spectra", "standalone", "theme", "time_to_quality"]

FIGURES: dict[str, Callable[[ReportRecords], canvas.Figure]] = {
    "samples": draw_samples,
    "fid": draw_fid,
    "loss": draw_loss,
    "throughput": draw_throughput,
    "ranks": draw_ranks,
    "stages": draw_stages,
    "weak_scaling": partial(draw_scaling, mode="weak"),
    "strong_scaling": partial(draw_scaling, mode="strong"),
    "stepwise": draw_stepwise,
    "memory": draw_memory,
    "pixels": draw_pixels,
    "calibration": draw_calibration,
}  # each is always written as figures/<name>.png next to the page
