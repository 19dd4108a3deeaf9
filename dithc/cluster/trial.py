"""Trial of a profile: a short job on chosen nodes."""

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dithc.cluster.commands import LIMIT_SECONDS, said
from dithc.cluster.slurm import SlurmQueue


@dataclass(frozen=True)
class Trial:
    """Result of a trial: `came` if its file exists, `why` with the scheduler's state and reason, the end of the `log`."""

    came: bool
    why: str
    log: str


def run_trial(options: Sequence[str], command: str, *, leaves: Path, log: Path, wait_seconds: float) -> Trial:
    """Submit a command and wait for its file, the end of the job, or a timeout (which cancels the job).

    Args:
        options: options of sbatch.
        leaves: file that the command writes last.
        wait_seconds: limit of the time in the queue and running.
    """
    line = ["sbatch", "--parsable", f"--output={log}", *options, f"--wrap={command}"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Trial(False, str(error), "")
    number = re.match(r"\d+", done.stdout)
    if done.returncode != 0 or number is None:
        return Trial(False, done.stderr.strip() or f"unexpected output of sbatch: {done.stdout!r}", "")
    queue, job, state = SlurmQueue(), number.group(), "not started"
    until = time.monotonic() + wait_seconds
    while time.monotonic() < until:
        if leaves.exists():
            return Trial(True, "COMPLETED", _tail(log))
        for ended in queue.ended([job]):
            state = f"{ended.state} {ended.reason}".strip()
            if not ended.active:
                time.sleep(2.0)  # a shared file system may show the file later
                return Trial(leaves.exists(), state, _tail(log))
        time.sleep(0.5)
    said(["scancel", job])
    return Trial(leaves.exists(), f"{state} after {wait_seconds:.0f} s; cancelled", _tail(log))


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    except OSError:
        return ""
