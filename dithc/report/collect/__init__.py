"""From manifests to facts: results are read, checked against each other, and turned into plain records.

What: `gather` reads the manifests and refuses a mixture; `collect` makes of them the `Facts` that the page and its figures say;
`read_curve` reads the metrics of a training, `smooth` averages them.
Why: what is shown knows records alone, never where a stage keeps what.
Invariants: nothing is computed that a stage did not say, but means of curves and sums of times; what was not run is None or
empty.
How to change it: a new fact is a field in `facts.py`, filled in `datasets.py`, `runs.py` or `evaluations.py`.
"""

from dithc.report.collect.curves import read_curve, smooth
from dithc.report.collect.experiment import collect
from dithc.report.collect.gather import gather

__all__ = ["collect", "gather", "read_curve", "smooth"]
