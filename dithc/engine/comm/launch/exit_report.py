"""Reports of a rank that ends: to `dithc launch`, and to the user once per distinct error."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from dithc.engine.comm.environment import LOGGED_SUFFIX, LOST_SUFFIX, STARTED_VARIABLE

RANK_VARIABLES = ("PMI_RANK", "PMI_ID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def rank_here() -> str:
    """Return the number of this rank from the launcher's variables, before MPI starts."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "?")


def report_exit(status: int) -> None:
    """Report a nonzero status to `dithc launch` if it started this rank; works also before a watchdog exists."""
    if status:
        notify_launch(f"rank {rank_here()} ended with status {status}\n{status}")


def notify_launch(message: str) -> None:
    """Report to `dithc launch` a rank that ended before all were connected, for which MPI would wait forever."""
    started = os.environ.get(STARTED_VARIABLE)
    if started and not Path(started).exists():
        with suppress(OSError):
            Path(started + LOST_SUFFIX).write_text(message)


def deduplicated_message(text: str) -> str:
    """Return the full error on the first rank that logs it, else a short message.

    Ranks share this information if `dithc launch` started them. Otherwise, or if the marker cannot be written, each
    rank logs the full error.
    """
    started = os.environ.get(STARTED_VARIABLE)
    if not started:
        return text
    try:
        name = f"{started}{LOGGED_SUFFIX}{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return f"rank {rank_here()}: the same error"
    except OSError:
        pass
    return text
