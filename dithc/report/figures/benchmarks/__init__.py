"""Figures of benchmarks: scaling, sampling, steps of optimization, memory over time, time to quality.

Contents: one module per figure; each draws from `ReportRecords`.
Invariants: as in `dithc.report.figures`.
Extending: as in `dithc.report.figures`.
"""

from dithc.report.figures.benchmarks import time_to_quality
from dithc.report.figures.benchmarks.sampling import draw_sampling
from dithc.report.figures.benchmarks.scaling import draw_scaling
from dithc.report.figures.benchmarks.stepwise import draw_stepwise
from dithc.report.figures.benchmarks.timeline import draw_memory, draw_timeline, read_timeline

__all__ = [
    "draw_memory",
    "draw_sampling",
    "draw_scaling",
    "draw_stepwise",
    "draw_timeline",
    "read_timeline",
    "time_to_quality",
]
