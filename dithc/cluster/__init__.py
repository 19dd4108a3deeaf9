"""Interface to cluster schedulers: jobs, reasons, partitions, resubmission.

Purpose: the workflow engine reports failures without reasons, and waits forever for jobs that cannot start.
Contents: `queue_of(name)` returns a scheduler's `Queue` of a folder's jobs. `reasons` explains states, `slurm` runs Slurm's
commands, and `generic` submits, queries and cancels jobs of all `systems` for Snakemake's generic executor.
Invariants: no call blocks longer than `commands.LIMIT_SECONDS`; a scheduler that does not reply is not an error.
Extending: a scheduler is a queue in `queues.Queue`, or an entry of `systems.SYSTEMS`.
"""

from dithc.cluster import deadline, site, slurm
from dithc.cluster.queue import Job
from dithc.cluster.queues import Queue, queue_of
from dithc.cluster.reasons import ended_because, waits_in_vain
from dithc.cluster.trial import run_trial

__all__ = ["Job", "Queue", "deadline", "ended_because", "queue_of", "run_trial", "site", "slurm", "waits_in_vain"]
