"""One job of a training run: request, lease, stop requests, exit status.

Contents: `TrainingJob` and its `Paths`; its statuses `DONE`, `STOPPED`, `HELD`; `hold_lease`; `StopRequests` (signals, walltime);
`StepTimer` (timeouts between ranks).
Invariants: all ranks exit with one status; signal handlers are restored.
Extending: a reason to stop is a method of `StopRequests`; the workflow's driver also interprets the statuses.
"""

from dithc.train.job.job import DONE, HELD, STOPPED, Paths, TrainingJob, hold_lease, run_once
from dithc.train.job.stop_requests import StepTimer, StopRequests

__all__ = ["DONE", "HELD", "STOPPED", "Paths", "StepTimer", "StopRequests", "TrainingJob", "hold_lease", "run_once"]
