"""Slurm's queue, read by its commands: squeue, sacct (with accounting), scontrol; and trial jobs."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.subprocesses import query, run_command

QUICK_SECONDS = 10.0  # limit of a query for which other ranks wait
LOGS = Path(".snakemake/slurm_logs")
# Formats of squeue and sacct, and the fields of `SchedulerJob` in their order; `folder` is not one of them.
FIELDS = "%i|%T|%j|%N|%r|%M|%Z|%k"
QUEUE = ("id", "state", "name", "nodes", "reason", "elapsed", "folder", "comment")
HISTORY = "JobIDRaw,State,ExitCode,NodeList,Elapsed,JobName,Comment"
ACCOUNTING = ("id", "state", "status", "nodes", "elapsed", "name", "comment")
SHOWN = {"name": "JobName", "state": "JobState", "reason": "Reason", "comment": "Comment", "nodes": "NodeList"}
SHOWN |= {"status": "ExitCode", "elapsed": "RunTime"}  # keys of scontrol
MISSING = ("None", "None assigned", "(null)")


class SlurmQueue:
    """Slurm jobs of the current user."""

    def jobs(self, folder: Path) -> list[SchedulerJob]:
        """Return the jobs that were submitted from a folder: waiting, running, and ended within Slurm's MinJobAge."""
        text = query(["squeue", "--me", "--noheader", "--states=all", f"--format={FIELDS}"])
        return read_queue(text or "", folder=folder.resolve())

    def ended(self, ids: Collection[str]) -> list[SchedulerJob]:
        """Return the ends of jobs: state, reason, status, nodes, time."""
        text = query(["sacct", "-X", "-n", "-P", "-j", ",".join(ids), f"--format={HISTORY}"]) if ids else None
        jobs = {job.id: job for job in read_accounting(text or "")}
        for number in set(ids) - set(jobs):
            job_text = query(["scontrol", "show", "job", "-o", number])
            jobs |= {number: _parse_job(number, job_text)} if job_text else {}
        return [jobs[number] for number in ids if number in jobs]

    def log(self, folder: Path, job: SchedulerJob) -> Path | None:
        return next(iter(sorted((folder / LOGS).rglob(f"{job.id}.log"))), None)


def deadline(job_id: str) -> float | None:
    """Return the end of a job in seconds since 1970; None if unknown."""
    text = query(["scontrol", "show", "job", "-o", job_id])
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text or "")
    return time.mktime(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")) if match else None


def requeue(job_id: str) -> bool:
    """Requeue a job under the same number; False if Slurm rejects it."""
    return run_command(["scontrol", "requeue", job_id]).returncode == 0


def exclude(job_id: str, nodes: Sequence[str]) -> str:
    """Exclude further nodes from a waiting job; return Slurm's reason to reject it, empty for success."""
    _, excluded = _exclusion(job_id, nodes)
    completed = run_command(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={excluded}"])
    return completed.stderr.strip() if completed.returncode else ""


def exclusion_fault(job_id: str, nodes: Sequence[str]) -> str:
    """Return the reason if a job could not run without further nodes; empty if it could."""
    fields, excluded = _exclusion(job_id, nodes)
    limit: dict[str, float] = {"limit_seconds": QUICK_SECONDS}
    names = set((query(["scontrol", "show", "hostnames", excluded], **limit) or "").split())
    sinfo = ["sinfo", "-h", "-N", "-p", fields.get("Partition", ""), "--format=%N %t"]
    rows = (query(sinfo, **limit) or "").splitlines()
    usable = {row.split()[0] for row in rows if re.search("(idle|mix|alloc|comp|plnd)[~#]?$", row)} - names
    needed = int(fields.get("NumNodes", "1").partition("-")[0])
    return (
        f"{len(usable)} other usable node(s) in the partition, the job needs {needed}" if len(usable) < needed else ""
    )


def _exclusion(job_id: str, nodes: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return fields of a job, and its excluded nodes with further ones."""
    text = query(["scontrol", "show", "job", "-o", job_id], limit_seconds=QUICK_SECONDS) or ""
    fields = dict(re.findall(r"\b(Partition|NumNodes|ExcNodeList)=(\S+)", text))
    earlier = fields.get("ExcNodeList", MISSING[0])
    return fields, ",".join(nodes if earlier in MISSING else [earlier, *nodes])


def rejection(options: Sequence[str]) -> str | None:
    """Return Slurm's reason to reject a job with options of sbatch, without submitting it; None if it would start or wait."""
    completed = run_command(["sbatch", "--test-only", *options, "--wrap=true"])
    # Nodes that are down, drained, reserved or in use, or other jobs that reach the limit of submitted jobs.
    waits = re.search("not available|busy|MaxSubmit", completed.stderr)
    return completed.stderr.strip() if completed.returncode and not waits else None


def run_probe_job(options: Sequence[str], command: str, *, leaves: Path, log: Path, wait_seconds: float) -> str | None:
    """Submit a command with options of sbatch, and wait for the file `leaves`, the end of the job, or a timeout.

    Returns the reason of the failure, with the end of the log; None if the file exists. A timeout cancels the job.
    """
    completed = run_command(["sbatch", "--parsable", f"--output={log}", *options, f"--wrap={command}"])
    number = re.match(r"\d+", completed.stdout)
    if completed.returncode != 0 or number is None:
        return completed.stderr.strip() or f"unexpected output of sbatch: {completed.stdout!r}"
    queue, job, state = SlurmQueue(), number.group(), "not started"
    until = time.monotonic() + wait_seconds
    while not leaves.exists():
        for end in queue.ended([job]):
            state = f"{end.state} {end.reason}".strip()
            if not end.active:
                time.sleep(2.0)  # a shared file system may show the file later
                return None if leaves.exists() else state + _printed(log)
        if time.monotonic() >= until:
            run_command(["scancel", job])
            return f"{state} after {wait_seconds:.0f} s; canceled{_printed(log)}"
        time.sleep(0.5)
    return None


def _printed(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-8:]
    except OSError:
        lines = []
    return "; it printed: " + "\n".join(lines) if lines else ""


def read_queue(text: str, *, folder: Path | None = None) -> list[SchedulerJob]:
    """Parse the output of squeue with `FIELDS`, optionally only the jobs of a folder."""
    rows = _rows(text, QUEUE)
    return [_job(row) for row in rows if folder is None or Path(row["folder"]) == folder]


def read_accounting(text: str) -> list[SchedulerJob]:
    """Parse the output of sacct with `HISTORY`; a canceled job's reason is `by` and a user number."""
    return [_job(row) for row in _rows(text, ACCOUNTING)]


def _rows(text: str, names: Sequence[str]) -> list[dict[str, str]]:
    rows = (line.split("|", len(names) - 1) for line in text.splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _parse_job(number: str, text: str) -> SchedulerJob:
    matches = {name: re.search(rf"\b{key}=(\S*)", text) for name, key in SHOWN.items()}
    return _job({"id": number} | {name: match.group(1) for name, match in matches.items() if match})


def _job(row: Mapping[str, str]) -> SchedulerJob:
    cells: dict[str, Any] = {name: "" if value in MISSING else value for name, value in row.items() if name != "folder"}
    state, _, reason = cells.pop("state", "").partition(" ")
    status = _status(cells.pop("status", ""))
    return SchedulerJob(**{"reason": reason} | cells, state=state, status=status)


def _status(text: str) -> int | None:
    """Convert Slurm's `status:signal` to a shell exit status."""
    status, _, number = text.partition(":")
    if not status.isdigit():
        return None
    return 128 + int(number) if number.isdigit() and int(number) else int(status)
