"""Trial of a profile: a short job on chosen nodes."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from dithc.engine.scheduler.slurm import SlurmQueue
from dithc.engine.scheduler.subprocesses import ran, said


def run_probe_job(options: Sequence[str], command: str, *, leaves: Path, log: Path, wait_seconds: float) -> str | None:
    """Submit a command with options of sbatch, and wait for the file `leaves`, the end of the job, or a timeout.

    Returns the reason of the failure, with the end of the log; None if the file exists. A timeout cancels the job.
    """
    done = ran(["sbatch", "--parsable", f"--output={log}", *options, f"--wrap={command}"])
    number = re.match(r"\d+", done.stdout)
    if done.returncode != 0 or number is None:
        return done.stderr.strip() or f"unexpected output of sbatch: {done.stdout!r}"
    queue, job, state = SlurmQueue(), number.group(), "not started"
    until = time.monotonic() + wait_seconds
    while not leaves.exists():
        for ended in queue.ended([job]):
            state = f"{ended.state} {ended.reason}".strip()
            if not ended.active:
                time.sleep(2.0)  # a shared file system may show the file later
                return None if leaves.exists() else state + _printed(log)
        if time.monotonic() >= until:
            said(["scancel", job])
            return f"{state} after {wait_seconds:.0f} s; cancelled{_printed(log)}"
        time.sleep(0.5)
    return None


def _printed(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-8:]
    except OSError:
        lines = []
    return "; it printed: " + "\n".join(lines) if lines else ""
