"""What a rank that ends tells: `dithc launch` that it did, and the user why, once for all of them."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from dithc.comm.environment import LOST_SUFFIX, SAID_SUFFIX, STARTED_VARIABLE

RANK_VARIABLES = ("PMI_RANK", "PMI_ID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def rank_here() -> str:
    """The number of this rank, as its launcher says it before MPI has started."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "?")


def tell_of_end(status: int) -> None:
    """Tells `dithc launch`, where it started this rank, of a status that is not 0: also before there is a guard."""
    if status:
        tell_launch(f"rank {rank_here()} ended with status {status}\n{status}")


def tell_launch(words: str) -> None:
    """Tells `dithc launch` of a rank that ended before all had met: MPI's own start would wait for it, for ever."""
    started = os.environ.get(STARTED_VARIABLE)
    if started and not Path(started).exists():
        with suppress(OSError):
            Path(started + LOST_SUFFIX).write_text(words)


def once(text: str) -> str:
    """An error as this rank is to say it: whole on the first that says it, in few words on those that have the very same one.

    Ranks know of each other's errors where `dithc launch` started them; else, and where nothing can be written, each says all.
    """
    started = os.environ.get(STARTED_VARIABLE)
    if not started:
        return text
    try:
        name = f"{started}{SAID_SUFFIX}{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return f"rank {rank_here()}: the same error"
    except OSError:
        pass
    return text
