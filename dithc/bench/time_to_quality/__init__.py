"""Time to quality: comparison of the times in which training runs reach a score.

Purpose: a faster step, a lower loss or a better codec is only useful if it improves the images after a given time.

Contents: `ComparisonPlan` builds the experiment of the comparison. `compare_runs` computes, from its manifests, the time and work
that a candidate needs for the baseline's last score, and the limits needed to interpret the ratio.

Invariants: all variants have the same tiles, the same wall time by their own measured step, and samples of the same
seeds. Steps are timed in short interleaved runs, so that later load on the machine does not change ratios. A ratio
belongs to one seed and is reported for every seed. If one of the two runs has the score at its first point, the ratio
is reported as a bound.

Extending: add a variant as a run of the experiment file, and a value of a point as a field of `result.Point`.
"""

from dithc.bench.time_to_quality import plan
from dithc.bench.time_to_quality.plan import ComparisonPlan, calibrated_seconds, calibrated_steps
from dithc.bench.time_to_quality.result import compare_runs, quality_summary

__all__ = ["ComparisonPlan", "calibrated_seconds", "calibrated_steps", "compare_runs", "plan", "quality_summary"]
