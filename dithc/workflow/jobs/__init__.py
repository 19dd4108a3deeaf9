"""Resources of jobs (`Jobs`, from the pure rules of `sizing`), and benchmark arguments (`Benches`).

Invariants: pure functions of the configuration, equal on login and compute nodes. A job that can never start is an error before
the first job.
Extending: a new stage is a line in `sizing._RULES`.
"""

from dithc.workflow.jobs.benches import Benches
from dithc.workflow.jobs.resources import Jobs

__all__ = ["Benches", "Jobs"]
