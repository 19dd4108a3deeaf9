"""Distances of two sets of images by features: FID with floors, KID with intervals, precision and recall.

Contents: pure functions of features or of their statistics, in float64.

Invariants: no torch. Each distance has an estimate of the effect of a finite number of images.

Extending: another distance is a file here, and an optional metric of `compare_features`.
"""

from dithc.evaluate.distances.frechet import FidFloor, fid, fid_floor, fid_floor_at, small_sample_warning
from dithc.evaluate.distances.kernel import kid
from dithc.evaluate.distances.precision_recall import precision_recall

__all__ = [
    "FidFloor",
    "fid",
    "fid_floor",
    "fid_floor_at",
    "kid",
    "precision_recall",
    "small_sample_warning",
]
