"""End of this job, which `dithc launch` finds and passes to its ranks; and requests to run again."""

import os
import time

from dithc.cluster.generic import mark_again

__all__ = ["environment", "mark_again", "seconds_left"]

VARIABLE = "DITHC_DEADLINE"


def seconds_left() -> float | None:
    """Return seconds until the scheduler ends this job; None without a known limit."""
    try:
        return float(os.environ[VARIABLE]) - time.time()
    except (KeyError, ValueError):
        return None


def environment(end: float | None) -> dict[str, str]:
    """Return the environment of ranks for a deadline `end` in seconds since 1970; None for no deadline."""
    return {} if end is None else {VARIABLE: f"{end:.0f}"}
