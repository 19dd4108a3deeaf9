"""Slurm's queue by its commands: squeue, sacct (with accounting), scontrol."""

import re
import time
from collections.abc import Collection
from pathlib import Path

from dithc.cluster.commands import said
from dithc.cluster.queue import Job

LOGS = Path(".snakemake/slurm_logs")
FIELDS = "%i|%T|%j|%N|%r|%Z|%k"
HISTORY = "JobIDRaw,State,ExitCode,NodeList,Elapsed,JobName,Comment"


class SlurmQueue:
    """The jobs of this user."""

    def jobs(self, folder: Path) -> list[Job]:
        """The caller's jobs that were submitted from a folder: waiting, running, and ended lately (Slurm's MinJobAge)."""
        text = said(["squeue", "--me", "--noheader", "--states=all", f"--format={FIELDS}"])
        return [job for line in (text or "").splitlines() if (job := _queued(line, folder.resolve())) is not None]

    def ended(self, ids: Collection[str]) -> list[Job]:
        """Return the ends of jobs: state, reason, status, nodes, time."""
        found: dict[str, Job] = {}
        text = said(["sacct", "-X", "-n", "-P", "-j", ",".join(ids), f"--format={HISTORY}"]) if ids else None
        for line in (text or "").splitlines():
            job = _accounted(line)
            found |= {job.id: job} if job is not None else {}
        for number in set(ids) - set(found):
            shown = said(["scontrol", "show", "job", "-o", number])
            found |= {number: _shown(number, shown)} if shown else {}
        return [found[number] for number in ids if number in found]

    def log(self, folder: Path, job: Job) -> Path | None:
        """The file with all that a job printed, if it is there."""
        return next(iter(sorted((folder / LOGS).rglob(f"{job.id}.log"))), None)

    def deadline(self, job_id: str) -> float | None:
        """Return the end of a job in seconds since 1970; None if unknown."""
        text = said(["scontrol", "show", "job", "-o", job_id])
        found = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text or "")
        return time.mktime(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S")) if found else None

    def again(self, job_id: str) -> bool:
        """Requeue a job under the same number; False if refused."""
        return said(["scontrol", "requeue", job_id]) is not None


def _queued(line: str, folder: Path) -> Job | None:
    words = line.split("|", 6)
    if len(words) < 7 or Path(words[5]) != folder:
        return None
    number, state, name, nodes, reason, _, what = words
    return Job(id=number, state=state, name=name, nodes=nodes, reason="" if reason == "None" else reason, what=what)


def _accounted(line: str) -> Job | None:
    words = line.split("|", 6)
    if len(words) < 7:
        return None
    number, state, status, nodes, elapsed, name, what = words
    first, _, by = state.partition(" ")  # "CANCELLED by 1000"
    return Job(
        id=number,
        name=name,
        state=first,
        reason=by,
        what=what,
        nodes="" if nodes == "None assigned" else nodes,
        status=_status(status),
        elapsed=elapsed,
    )


def _shown(number: str, text: str) -> Job:
    def value(key: str) -> str:
        found = re.search(rf"\b{key}=(\S*)", text)
        return found.group(1) if found and found.group(1) != "(null)" else ""

    return Job(
        id=number,
        name=value("JobName"),
        state=value("JobState"),
        reason=value("Reason") if value("Reason") != "None" else "",
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
