"""Runs a scheduler's commands: bounded in time, and without an exception where one is missing or fails."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from dithc.log import logger

LIMIT_SECONDS = 30.0
log = logger(__name__)


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status; None where it is missing or took longer than the limit."""

    status: int | None
    out: str = ""
    err: str = ""


def ran(line: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> Said:
    """Runs a command to its end."""
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
    """What a command printed; None where it is missing, fails, or takes longer than the limit."""
    done = ran(line, limit_seconds=limit_seconds)
    return done.out if done.status == 0 else None
