"""Queues by scheduler."""

from dithc.cluster.generic_queue import GenericQueue
from dithc.cluster.queue import Queue
from dithc.cluster.slurm import SlurmQueue


def queue_of(scheduler: str) -> Queue:
    """Return the queue of a scheduler (`machine.scheduler`); ValueError if it has none."""
    if scheduler == "slurm":
        return SlurmQueue()
    if scheduler == "generic":
        return GenericQueue()
    raise ValueError(f"scheduler {scheduler!r} has no queue")
