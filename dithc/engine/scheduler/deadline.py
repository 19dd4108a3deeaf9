"""End of this job, which `dithc launch` finds and passes to its ranks; and requests to run again, without some nodes."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from dithc.core.logging import get_logger
from dithc.engine.scheduler import slurm

log = get_logger(__name__)
VARIABLE, AGAIN_FILE, EXCLUDE_FILE = "DITHC_DEADLINE", "DITHC_REQUEUE_FILE", "DITHC_EXCLUDE_FILE"


def seconds_left() -> float | None:
    """Return seconds until the scheduler ends this job; None without a known limit."""
    try:
        return float(os.environ[VARIABLE]) - time.time()
    except (KeyError, ValueError):
        return None


def environment(end: float | None) -> dict[str, str]:
    """Return the environment of ranks for a deadline `end` in seconds since 1970; None for no deadline."""
    return {} if end is None else {VARIABLE: f"{end:.0f}"}


def mark_again(reached: str = "") -> bool:
    """Request another run after this job stopped early and saved; False outside a job of this executor.

    `reached` is the progress, such as `step 1200`. Many runs without progress end the job. Empty keeps the earlier text.
    """
    name = os.environ.get(AGAIN_FILE)
    if not name:
        return False
    path = Path(name)
    if reached or not path.exists():
        path.write_text(reached)
    return True


def exclude(nodes: Sequence[str]) -> None:
    """Request that the next run of this job avoids nodes, for which `exclusion_fault` is empty."""
    if nodes:
        try:
            Path(os.environ[EXCLUDE_FILE]).write_text(",".join(nodes))
        except OSError as error:
            log.warning("%s not excluded from the next job: %s", ", ".join(nodes), error)


def exclusion_fault(nodes: Sequence[str]) -> str:
    """Return the reason if the next run of this job cannot avoid nodes; empty if it can."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or EXCLUDE_FILE not in os.environ:
        return "only jobs of `dithc launch --scheduler slurm` exclude nodes"
    return slurm.exclusion_fault(job, nodes)
