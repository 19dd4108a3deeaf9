"""Interface to cluster schedulers: jobs, reasons, partitions, resubmission.

Purpose: the workflow engine reports failures without reasons, and waits forever for jobs that cannot start.
Contents: `queue_of(name)` returns a scheduler's `Queue` of a folder's jobs. `diagnostics` explains states, `slurm` runs Slurm's
commands, and `cluster_generic` submits, queries and cancels jobs of all `batch_systems` for Snakemake's generic executor.
Invariants: no call blocks longer than `subprocesses.LIMIT_SECONDS`; a scheduler that does not reply is not an error.
Extending: a scheduler is a queue in `registry.Queue`, or an entry of `batch_systems.SYSTEMS`.
"""

from dithc.engine.scheduler import deadline, slurm, slurm_site
from dithc.engine.scheduler.diagnostics import ended_because, waits_in_vain
from dithc.engine.scheduler.probe_job import run_trial
from dithc.engine.scheduler.queue import Job
from dithc.engine.scheduler.registry import Queue, queue_of

__all__ = ["Job", "Queue", "deadline", "ended_because", "queue_of", "run_trial", "slurm", "slurm_site", "waits_in_vain"]
