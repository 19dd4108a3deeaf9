"""Slurm's queue, read by its commands: squeue, sacct (with accounting), scontrol."""

import re
import time
from collections.abc import Collection
from pathlib import Path

from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.subprocesses import said

LOGS = Path(".snakemake/slurm_logs")
FIELDS = "%i|%T|%j|%N|%r|%M|%Z|%k"
HISTORY = "JobIDRaw,State,ExitCode,NodeList,Elapsed,JobName,Comment"


class SlurmQueue:
    """Slurm jobs of the current user."""

    def jobs(self, folder: Path) -> list[SchedulerJob]:
        """Return the jobs that were submitted from a folder: waiting, running, and ended within Slurm's MinJobAge."""
        text = said(["squeue", "--me", "--noheader", "--states=all", f"--format={FIELDS}"])
        return read_queue(text or "", folder=folder.resolve())

    def ended(self, ids: Collection[str]) -> list[SchedulerJob]:
        """Return the ends of jobs: state, reason, status, nodes, time."""
        text = said(["sacct", "-X", "-n", "-P", "-j", ",".join(ids), f"--format={HISTORY}"]) if ids else None
        found = {job.id: job for job in read_accounting(text or "")}
        for number in set(ids) - set(found):
            shown = said(["scontrol", "show", "job", "-o", number])
            found |= {number: _shown(number, shown)} if shown else {}
        return [found[number] for number in ids if number in found]

    def log(self, folder: Path, job: SchedulerJob) -> Path | None:
        return next(iter(sorted((folder / LOGS).rglob(f"{job.id}.log"))), None)


def deadline(job_id: str) -> float | None:
    """Return the end of a job in seconds since 1970; None if unknown."""
    text = said(["scontrol", "show", "job", "-o", job_id])
    found = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text or "")
    return time.mktime(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S")) if found else None


def requeue(job_id: str) -> bool:
    """Requeue a job under the same number; False if Slurm rejects it."""
    return said(["scontrol", "requeue", job_id]) is not None


def read_queue(text: str, *, folder: Path | None = None) -> list[SchedulerJob]:
    """Parse the output of squeue with `FIELDS`, optionally only the jobs of a folder."""
    rows = [line.split("|", 7) for line in text.splitlines() if line.count("|") >= 7]
    return [
        SchedulerJob(
            id=number,
            state=state,
            name=name,
            nodes=nodes,
            reason="" if reason == "None" else reason,
            elapsed=elapsed,
            what=what,
        )
        for number, state, name, nodes, reason, elapsed, submitted_from, what in rows
        if folder is None or Path(submitted_from) == folder
    ]


def read_accounting(text: str) -> list[SchedulerJob]:
    """Parse the output of sacct with `HISTORY`; a canceled job's reason is `by` and a user number."""
    rows = [line.split("|", 6) for line in text.splitlines() if line.count("|") >= 6]
    return [
        SchedulerJob(
            id=number,
            name=name,
            state=state.partition(" ")[0],
            reason=state.partition(" ")[2],
            what=what,
            nodes="" if nodes == "None assigned" else nodes,
            status=_status(status),
            elapsed=elapsed,
        )
        for number, state, status, nodes, elapsed, name, what in rows
    ]


def _shown(number: str, text: str) -> SchedulerJob:
    def value(key: str) -> str:
        found = re.search(rf"\b{key}=(\S*)", text)
        return found.group(1) if found and found.group(1) not in ("(null)", "None") else ""

    return SchedulerJob(
        id=number,
        name=value("JobName"),
        state=value("JobState"),
        reason=value("Reason"),
        what=value("Comment"),
        nodes=value("NodeList"),
        status=_status(value("ExitCode")),
        elapsed=value("RunTime"),
    )


def _status(text: str) -> int | None:
    """Convert Slurm's `status:signal` to a shell exit status."""
    status, _, number = text.partition(":")
    if not status.isdigit():
        return None
    return 128 + int(number) if number.isdigit() and int(number) else int(status)
