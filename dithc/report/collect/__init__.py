"""Collection of facts: results are read, checked against each other, and converted into plain records.

Contents: `gather` reads the manifests and rejects inconsistent results. `collect` converts them into `Facts`.
`read_curve` reads the metrics of a run, `smooth` averages them.

Invariants: only means of curves and sums of times are computed. Missing results are None or empty.

Extending: a new fact is a field in `facts.py`, filled in `datasets.py`, `runs.py` or `evaluations.py`.
"""

from dithc.report.collect.curves import read_curve, smooth
from dithc.report.collect.experiment import collect
from dithc.report.collect.gather import gather

__all__ = ["collect", "gather", "read_curve", "smooth"]
