"""How far two sets of images are apart, by their features: FID and KID with floors and intervals, precision and recall.

What: pure functions of features or of their statistics, in float64.
Invariants: no torch; a distance comes with what a finite number of images does to it.
How to change it: another distance is a file here, asked for in `beside.py`.
"""

from dithc.evaluate.distances.frechet import Floor, few_images, fid, floor, floor_at
from dithc.evaluate.distances.interval import fid_interval
from dithc.evaluate.distances.kernel import kid
from dithc.evaluate.distances.precision_recall import neighbours

__all__ = ["Floor", "few_images", "fid", "fid_interval", "floor", "floor_at", "kid", "neighbours"]
