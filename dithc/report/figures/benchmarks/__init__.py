"""Figures of benchmarks and of the paper targets: bars, curves, memory over time, time to quality.

Contents: `bars` draws cells, `series` curves, with `marks` by status. The other modules draw from `ReportRecords`.
Invariants: as in `dithc.report.figures`.
Extending: as in `dithc.report.figures`.
"""

from dithc.report.figures.benchmarks import bars, marks, series, time_to_quality
from dithc.report.figures.benchmarks.measured import draw_scaling, draw_stepwise
from dithc.report.figures.benchmarks.timeline import draw_memory, draw_timeline, read_timeline

__all__ = [
    "bars",
    "draw_memory",
    "draw_scaling",
    "draw_stepwise",
    "draw_timeline",
    "marks",
    "read_timeline",
    "series",
    "time_to_quality",
]
