"""Queue of the generic executor, from its records and the batch system."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from dithc.cluster.ask import jobs_of
from dithc.cluster.generic import DRIVER, MAX_FRUITLESS, resubmit, verdict
from dithc.cluster.queue import Job
from dithc.cluster.records import Record, load, now, records

LATELY_SECONDS = 600.0
# States of a job of which its system says nothing (yet), and of one that it has forgotten.
UNKNOWN, ENDED = "PENDING", "FAILED"


class GenericQueue:
    """Jobs submitted from a folder (default: the current one), each under the number of its first submission."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path.cwd()

    def jobs(self, folder: Path) -> list[Job]:
        """The jobs that were submitted from a folder: waiting, running, and ended lately."""
        self.folder = folder.resolve()
        some = [
            one for one in records(self.folder) if not one.answer or now() - _ended(one, self.folder) < LATELY_SECONDS
        ]
        return self._seen(some, jobs_of(one for one in some if not one.answer))

    def ended(self, ids: Collection[str]) -> list[Job]:
        """Return the ends of jobs: state, reason, status, nodes, time."""
        some = [one for number in ids if (one := load(self.folder, number)) is not None]
        return self._seen(some, jobs_of(some))

    def log(self, folder: Path, job: Job) -> Path | None:
        """The file with all that a job printed, if it is there."""
        record = load(folder, job.id)
        path = record.path(folder, "log") if record is not None else None
        return path if path is not None and path.exists() else None

    def deadline(self, job_id: str) -> float | None:
        """Return the end of a job in seconds since 1970; None if unknown."""
        record = load(self.folder, job_id)
        begun = record.begun(self.folder) if record is not None else None
        return begun + 60 * record.minutes if record is not None and begun is not None else None

    def again(self, job_id: str) -> bool:
        """Requeue a job under the same number; False if refused."""
        record = load(self.folder, job_id)
        if record is None or record.cancelled is not None or record.fruitless >= MAX_FRUITLESS:
            return False
        seen = jobs_of([record]).get(record.current)
        if isinstance(seen, Job) and seen.active:
            return False
        new = resubmit(replace(record, fruitless=record.fruitless + 1), self.folder)
        return new is not None and not new.answer

    def _seen(self, some: list[Record], by_number: dict[str, Job | bool]) -> list[Job]:
        return [self._job(one, by_number.get(one.current)) for one in some]

    def _job(self, record: Record, seen: Job | bool | None) -> Job:
        code, again = record.status(self.folder), record.again(self.folder)
        word = record.answer or verdict(
            status=code,
            again=again is not None,
            job=seen,
            missing=now() - max(record.submitted, record.missing_since or 0.0),
        )
        known = (
            seen
            if isinstance(seen, Job)
            else Job(id=record.id, state=record.state or (ENDED if word != "running" else UNKNOWN))
        )
        state = known.state
        if word == "success":
            state = "COMPLETED"
        elif word == "again" and record.driver == os.environ.get(DRIVER):  # its driver lives, and will see to it
            state = "REQUEUED"
        status = code if code is not None else known.status
        return replace(known, id=record.id, name=record.driver, what=record.what, state=state, status=status)


def _ended(record: Record, folder: Path) -> float:
    try:
        return record.path(folder, "status").stat().st_mtime
    except OSError:
        return record.cancelled or record.submitted
