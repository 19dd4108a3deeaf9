"""Resources of jobs (`JobResources`, from the pure rules of `sizing`), and arguments (`BenchmarkArguments`, `options`).

Invariants: pure functions of the configuration, equal on login and compute nodes. A job that can never start is an error before
the first job.
Extending: a new stage needs an entry of `sizing._RULES`.
"""

from dithc.workflow.jobs.benches import BenchmarkArguments, options
from dithc.workflow.jobs.resources import JobResources

__all__ = ["BenchmarkArguments", "JobResources", "options"]
