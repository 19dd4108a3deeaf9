"""Collection of records: results are read, checked against each other, and converted into plain records.

Contents: `gather_manifests` reads the manifests and rejects inconsistent results. `collect_records` converts them into
`ReportRecords`, `restoration_record` a single one. `read_curve` reads the metrics of a run, `smooth` averages them.

Invariants: only means of curves and sums of times are computed. Missing results are None or empty.

Extending: a new value is a field in `records.py` of the report, filled in `datasets.py`, `runs.py` or `evaluations.py`.
"""

from dithc.report.collect.curves import read_curve, smooth
from dithc.report.collect.experiment import collect_records
from dithc.report.collect.gather import gather_manifests
from dithc.report.collect.restorations import restoration_record

__all__ = ["collect_records", "gather_manifests", "read_curve", "restoration_record", "smooth"]
