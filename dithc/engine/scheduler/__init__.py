"""Interface to cluster schedulers: jobs, reasons, partitions, resubmission.

Purpose: the workflow engine reports failures without reasons, and waits forever for jobs that cannot start.
Contents: `get_queue(name)` returns a scheduler's `SchedulerQueue` of a folder's jobs. `diagnostics` explains states, `slurm` runs
Slurm's commands, and `cluster_generic` submits, queries and cancels jobs of all `batch_systems` for Snakemake's generic executor.
Invariants: no call blocks longer than `subprocesses.LIMIT_SECONDS`; a scheduler that does not reply is not an error.
Extending: a scheduler is a queue in `queues.SchedulerQueue`, or an entry of `batch_systems.SYSTEMS`.
"""

from dithc.engine.scheduler import deadline, slurm, slurm_site
from dithc.engine.scheduler.diagnostics import explain_blocked, explain_end
from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.queues import SchedulerQueue, get_queue
from dithc.engine.scheduler.slurm import run_probe_job

__all__ = [
    "SchedulerJob",
    "SchedulerQueue",
    "deadline",
    "explain_blocked",
    "explain_end",
    "get_queue",
    "run_probe_job",
    "slurm",
    "slurm_site",
]
