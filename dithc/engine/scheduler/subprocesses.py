"""Scheduler commands with a timeout. A missing or failing command raises no exception."""

import subprocess
from collections.abc import Sequence

from dithc.core.logging import get_logger

LIMIT_SECONDS = 30.0
NOT_RUN = -1  # status of a command that is missing or timed out
log = get_logger(__name__)


def run_command(argv: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> subprocess.CompletedProcess[str]:
    try:
        completed = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=limit_seconds, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        completed = subprocess.CompletedProcess(argv, NOT_RUN, "", str(error))
    if completed.returncode != 0:
        log.debug("%s: status %d: %s", " ".join(argv), completed.returncode, completed.stderr.strip())
    return completed


def query(argv: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> str | None:
    """Return the output of a command; None if it is missing, fails or times out."""
    completed = run_command(argv, limit_seconds=limit_seconds)
    return completed.stdout if completed.returncode == 0 else None
