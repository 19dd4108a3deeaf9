"""Queues by scheduler."""

from typing import TypeAlias

from dithc.engine.scheduler.generic_queue import GenericQueue
from dithc.engine.scheduler.slurm import SlurmQueue

SchedulerQueue: TypeAlias = SlurmQueue | GenericQueue


def get_queue(scheduler: str) -> SchedulerQueue | None:
    """Return the queue of a scheduler (`machine.scheduler`); None for `none`."""
    return {"slurm": SlurmQueue, "generic": GenericQueue}[scheduler]() if scheduler != "none" else None
