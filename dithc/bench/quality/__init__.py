"""Time to quality: which of several trainings reaches a score first.

What: `Plan` says what is trained and judged, as one experiment of the workflow; `judge` makes of its manifests the time and the
work that a candidate needs for the baseline's last score, beside what makes such a ratio worth believing.
Why: a faster step, a lower loss or a better codec is worth what it changes about the images of a given hour.
Invariants: contenders have the same tiles, the same wall time by their own measured step, and samples of the same seeds; steps
are timed in short trainings that take turns, so that what else a machine does later changes no ratio; a ratio is of one seed, and
is told for every seed; where one of both had the score at its first point, it is told as the bound that it is.
How to change it: another contender is a run of the experiment file; another number of a point is a field of `result.Point`.
"""

from dithc.bench.quality.plan import (
    Plan,
    calibrated_seconds,
    calibrated_steps,
    point_name,
    points,
    run_name,
)
from dithc.bench.quality.result import judge, quality_table

__all__ = [
    "Plan",
    "calibrated_seconds",
    "calibrated_steps",
    "judge",
    "point_name",
    "points",
    "quality_table",
    "run_name",
]
