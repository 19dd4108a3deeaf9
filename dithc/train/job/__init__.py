"""One job of a training run: request, lease, stop requests, exit status.

Contents: `Job` and its `Paths`; its statuses `DONE`, `STOPPED`, `HELD`; `leased`; `Stop` (signals, walltime); `Pace`
(timeouts between ranks).
Invariants: all ranks exit with one status; signal handlers are restored.
Extending: a reason to stop is a method of `Stop`; the workflow's driver also interprets the statuses.
"""

from dithc.train.job.job import DONE, HELD, STOPPED, Job, Paths, leased
from dithc.train.job.stop_requests import Pace, Stop

__all__ = ["DONE", "HELD", "STOPPED", "Job", "Pace", "Paths", "Stop", "leased"]
