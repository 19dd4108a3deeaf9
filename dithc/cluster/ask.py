"""Batched job queries to a batch system, with replies cached for a few seconds."""

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dithc.cluster.commands import ran
from dithc.cluster.queue import Job
from dithc.cluster.records import JOBS, Record, now, records, write
from dithc.cluster.systems import SYSTEMS

FRESH_SECONDS = 5.0
ANSWERS = JOBS / "answers"


@dataclass(frozen=True)
class Answer:
    """Reply of a batch system: jobs by number, and unknown numbers; a number in neither has no reply."""

    jobs: dict[str, Job]
    missing: frozenset[str] = frozenset()


def ask(system: str, ids: Collection[str]) -> Answer:
    """Query a batch system for jobs."""
    found: dict[str, Job] = {}
    for number, one in enumerate(SYSTEMS[system].asks):
        left = [job for job in ids if job not in found]
        line = one.line(left)
        if not left or (number and shutil.which(line[0]) is None):
            break
        done = ran(line)
        shown = {_stem(job.id): job for job in one.read(done.out)}
        found |= {job: shown[_stem(job)] for job in left if _stem(job) in shown}
        if done.status != 0 and not any(words in done.err for words in SYSTEMS[system].unknown):
            return Answer(found)
    return Answer(found, frozenset(set(ids) - set(found)))


def job_of(folder: Path, record: Record) -> Job | bool | None:
    """Return a job as its system reports it; False if unknown there, None without a reply.

    One command queries all unsettled jobs of the driver, and its reply is reused for some seconds.
    """
    kept = _kept(folder)
    if record.current not in kept:
        whose = (record.system, record.driver)
        ids = [one.current for one in records(folder) if not one.answer and (one.system, one.driver) == whose]
        answer = ask(record.system, {*ids, record.current})
        kept = {number: asdict(job) for number, job in answer.jobs.items()} | dict.fromkeys(answer.missing)
        write(folder / ANSWERS, json.dumps({"time": now(), "jobs": kept}))
    if record.current not in kept:
        return None
    values = kept[record.current]
    return Job(**values) if values is not None else False


def jobs_of(some: Iterable[Record]) -> dict[str, Job | bool]:
    """Return the replies for jobs (False: unknown) by the number of their newest submission; omits silent systems."""
    by_system: dict[str, list[str]] = {}
    for record in some:
        by_system.setdefault(record.system, []).append(record.current)
    answers = [ask(system, ids) for system, ids in by_system.items()]
    known: dict[str, Job | bool] = {number: job for answer in answers for number, job in answer.jobs.items()}
    return known | {number: False for answer in answers for number in answer.missing}


def _kept(folder: Path) -> dict[str, dict[str, Any] | None]:
    try:
        content = json.loads((folder / ANSWERS).read_text())
        return dict(content["jobs"]) if 0 <= now() - content["time"] < FRESH_SECONDS else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _stem(number: str) -> str:
    """Strip the server name, which PBS prints in several forms, from a number."""
    return number.partition(".")[0]
