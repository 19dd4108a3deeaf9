"""A rank's guard: a parent process that outlives the rank, so that its death is told by name.

A launcher that loses a rank kills the others at once, and names a process number at best. So each rank forks before it joins
the others: the child is the rank, and the parent, which the launcher knows, waits for it. When the rank is ended by a
signal, the parent says so and stays a while, in which the other ranks find out and end with an error that names it. Ranks that
still connect do not find out: `dithc launch` is told, and ends them. The guards end with the launcher's process on their node.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dithc.comm.environment import HYDRA_PROXY, LOST_SUFFIX, STARTED_VARIABLE
from dithc.comm.launching.supervision import follow_parent, name_of
from dithc.log import logger

log = logger(__name__)

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
# How long the guard of a dead rank keeps the launcher from killing the others: they look every second, and stop at once.
GRACE_SECONDS = 10.0
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
OFF_VARIABLE = "DITHC_NO_GUARD"


def guarded() -> None:
    """Returns in a child of this process, whose status this process then ends with; call it before any thread is started."""
    if os.environ.get(OFF_VARIABLE):
        log.info("ranks have no guards (%s is set)", OFF_VARIABLE)
        return
    if name_of(os.getppid()) == HYDRA_PROXY:  # of MPICH's mpiexec on this node; without it ranks would train on, unseen
        follow_parent(signal.SIGKILL)()
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child == 0:
        follow_parent(signal.SIGKILL)()
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
        return
    _watch(child)


def _watch(child: int) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        chosen = os.waitstatus_to_exitcode(status)
        tell_of_end(chosen)
        os._exit(chosen)
    rank = _rank()
    ended_by = os.WTERMSIG(status)
    cause = ": out of memory, or killed from outside" if ended_by == signal.SIGKILL else ""
    log.error("rank %s (process %d) was ended by %s%s", rank, child, signal.Signals(ended_by).name, cause)
    _tell_launch(f"rank {rank} was ended by {signal.Signals(ended_by).name}")
    time.sleep(GRACE_SECONDS)
    os._exit(128 + ended_by)


def tell_of_end(status: int) -> None:
    """Tells `dithc launch`, where it started this rank, of a status that is not 0: also before there is a guard."""
    if status:
        _tell_launch(f"rank {_rank()} ended with status {status}\n{status}")


def _rank() -> str:
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "?")


def _tell_launch(words: str) -> None:
    """Tells `dithc launch` of a rank that ended before all had met: MPI's own start would wait for it, for ever."""
    started = os.environ.get(STARTED_VARIABLE)
    if started and not Path(started).exists():
        with suppress(OSError):
            Path(started + LOST_SUFFIX).write_text(words)
