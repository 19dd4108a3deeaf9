"""Scheduler commands with a timeout. A missing or failing command raises no exception."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from dithc.log import logger

LIMIT_SECONDS = 30.0
log = logger(__name__)


@dataclass(frozen=True)
class Said:
    """Output and exit status of a command; None if it is missing or timed out."""

    status: int | None
    out: str = ""
    err: str = ""


def ran(line: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> Said:
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=limit_seconds, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("%s: %s", line[0], error)
        return Said(None, err=str(error))
    if done.returncode != 0:
        log.debug("%s: status %d: %s", " ".join(line), done.returncode, done.stderr.strip())
    return Said(done.returncode, done.stdout, done.stderr)


def said(line: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> str | None:
    """Return the output of a command; None if it is missing, fails or times out."""
    done = ran(line, limit_seconds=limit_seconds)
    return done.out if done.status == 0 else None
