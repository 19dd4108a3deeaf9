"""What a cluster's scheduler says: its jobs, why one waits or ended, its partitions; and what dithc tells it.

What: `queue_of(name)` gives the `Queue` of a scheduler: the jobs of a folder, why they ended, how long one has left, and "run
this one again". Sentences about reasons and states are pure functions (`reasons`); the commands of Slurm are in `slurm`.
`generic` submits, watches and cancels jobs of Slurm, PBS, LSF and Fujitsu's system (`systems`) for Snakemake's generic executor.
Why: the workflow engine says "FAILED, reason unknown" and waits for ever on a job that can never start.
Invariants: nothing here blocks for longer than `commands.LIMIT_SECONDS`; a scheduler that does not answer is an empty answer,
never an error of the work.
How to change it: another scheduler is another `Queue`, or another entry of `systems.SYSTEMS`.
"""

from dithc.cluster import deadline, site
from dithc.cluster.queue import Job, Queue
from dithc.cluster.queues import queue_of
from dithc.cluster.reasons import ended_because, waits_in_vain
from dithc.cluster.trial import run_trial

__all__ = ["Job", "Queue", "deadline", "ended_because", "queue_of", "run_trial", "site", "waits_in_vain"]
