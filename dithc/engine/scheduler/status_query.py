"""Batched job queries to batch systems, with replies cached for a few seconds."""

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from time import time as now
from typing import Literal

from dithc.engine.scheduler.batch_systems import SYSTEMS
from dithc.engine.scheduler.job_records import JOBS, JobRecord, records, write
from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.subprocesses import run_command

FRESH_SECONDS = 5.0
REPLIES = JOBS / "answers"

Replies = dict[str, SchedulerJob | Literal[False]]
"""Jobs by number, False for a job that its system does not have. A number without a reply is absent."""


def job_of(folder: Path, record: JobRecord) -> SchedulerJob | Literal[False] | None:
    """Return a job as its system reports it; False if unknown there, None without a reply.

    One command queries all unfinished jobs of the driver, and its reply is reused for `FRESH_SECONDS`.
    """
    replies = _cached(folder)
    if record.current not in replies:
        driver_records = [other for other in records(folder) if not other.outcome and other.driver == record.driver]
        replies = jobs_of([record, *driver_records])
        jobs = {number: asdict(job) if job else None for number, job in replies.items()}
        write(folder / REPLIES, json.dumps({"time": now(), "jobs": jobs}))
    return replies.get(record.current)


def jobs_of(job_records: Iterable[JobRecord]) -> Replies:
    numbers: dict[str, list[str]] = {}
    for record in job_records:
        numbers.setdefault(record.system, []).append(record.current)
    return {number: job for system, ids in numbers.items() for number, job in _query(system, ids).items()}


def _query(system: str, ids: Collection[str]) -> Replies:
    replies: Replies = {}
    for index, query in enumerate(SYSTEMS[system].queries):
        unanswered = [job for job in ids if job not in replies]
        argv = query.argv(unanswered)
        if not unanswered or (index and shutil.which(argv[0]) is None):
            break
        completed = run_command(argv)
        # PBS prints the server name after a job number in several forms.
        jobs = {job.id.partition(".")[0]: job for job in query.read(completed.stdout)}
        replies |= {job: jobs[stem] for job in unanswered if (stem := job.partition(".")[0]) in jobs}
        if completed.returncode != 0 and not any(text in completed.stderr for text in SYSTEMS[system].unknown):
            return replies
    return {**dict.fromkeys(ids, False), **replies}


def _cached(folder: Path) -> Replies:
    try:
        content = json.loads((folder / REPLIES).read_text())
        if 0 <= now() - content["time"] < FRESH_SECONDS:
            return {number: SchedulerJob(**values) if values else False for number, values in content["jobs"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    return {}
