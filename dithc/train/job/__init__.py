"""One job of a training: what it is asked, the lease that it holds, the requests to stop that it hears, how it leaves.

What: `Job` is the order, with `DONE`, `STOPPED` and `HELD` as the statuses that it ends with; `leased` takes the lease of the
store for all ranks; `Stop` hears signals and the end of the walltime, `Pace` says for how long ranks wait for each other.
Why: a driver starts things twice, and the walltime is shorter than the training.
Invariants: all ranks leave together, with one status; signal handlers come back as they were.
How to change it: another reason to stop is a method of `Stop`; a status is known to the workflow's driver too.
"""

from dithc.train.job.job import DONE, HELD, STOPPED, Job
from dithc.train.job.lease import leased
from dithc.train.job.stop import Pace, Stop

__all__ = ["DONE", "HELD", "STOPPED", "Job", "Pace", "Stop", "leased"]
