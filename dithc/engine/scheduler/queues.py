"""Queues by scheduler: Slurm's, and that of the generic executor, from its records and the batch system."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from time import time as now
from typing import TypeAlias

from dithc.engine.scheduler.cluster_generic import DRIVER, job_outcome
from dithc.engine.scheduler.job_records import JobRecord, load, records
from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.slurm import SlurmQueue
from dithc.engine.scheduler.status_query import jobs_of

RECENT_SECONDS = 600.0


class GenericQueue:
    """Jobs submitted from a folder (default: the current one), each under the number of its first submission."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path.cwd()

    def jobs(self, folder: Path) -> list[SchedulerJob]:
        """Return the jobs that were submitted from a folder: waiting, running, and recently ended."""
        self.folder = folder.resolve()
        start = now() - RECENT_SECONDS
        job_records = [
            record for record in records(self.folder) if not record.outcome or _end_time(record, self.folder) > start
        ]
        return self._with_replies(job_records, [record for record in job_records if not record.outcome])

    def ended(self, ids: Collection[str]) -> list[SchedulerJob]:
        job_records = [record for number in ids if (record := load(self.folder, number)) is not None]
        return self._with_replies(job_records, job_records)

    def log(self, folder: Path, job: SchedulerJob) -> Path | None:
        record = load(folder, job.id)
        path = record.path(folder, "log") if record is not None else None
        return path if path is not None and path.exists() else None

    def _with_replies(self, job_records: list[JobRecord], queried: list[JobRecord]) -> list[SchedulerJob]:
        replies = jobs_of(queried)
        return [self._job(record, replies.get(record.current)) for record in job_records]

    def _job(self, record: JobRecord, reply: SchedulerJob | bool | None) -> SchedulerJob:
        code, again = record.status(self.folder), record.again(self.folder)
        missing = now() - max(record.submitted, record.missing_since or 0.0)
        outcome = record.outcome or job_outcome(status=code, again=again is not None, job=reply, missing=missing)
        if isinstance(reply, SchedulerJob):
            job = reply
        else:  # unknown to its system: not yet, or no longer
            job = SchedulerJob(id=record.id, state=record.state or ("PENDING" if outcome == "running" else "FAILED"))
        state = job.state
        if outcome == "success":
            state = "COMPLETED"
        elif outcome == "again" and record.driver == os.environ.get(DRIVER):  # the active driver resubmits it
            state = "REQUEUED"
        status = code if code is not None else job.status
        return replace(job, id=record.id, name=record.driver, comment=record.comment, state=state, status=status)


def _end_time(record: JobRecord, folder: Path) -> float:
    try:
        return record.path(folder, "status").stat().st_mtime
    except OSError:
        return record.cancelled or record.submitted


SchedulerQueue: TypeAlias = SlurmQueue | GenericQueue


def get_queue(scheduler: str) -> SchedulerQueue | None:
    """Return the queue of a scheduler (`machine.scheduler`); None for `none`."""
    return {"slurm": SlurmQueue, "generic": GenericQueue}[scheduler]() if scheduler != "none" else None
