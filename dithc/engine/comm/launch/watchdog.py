"""Guard of a rank: a parent process that outlives the rank and reports its death.

A launcher that loses a rank kills the other ranks immediately, and reports a process number at best. Therefore each
rank forks before it connects, and the launcher monitors the parent. If a signal kills the rank, the parent logs this and
stays until the other ranks have detected the loss and named the lost rank. `dithc launch` is notified too, because
ranks that are still connecting do not detect it.

The guard also names a rank that a signal has stopped. It kills the rank if the other ranks depend on it: until all are
connected, and then for the duration set by the rank (`set_stop_timeout`).
"""

import mmap
import os
import signal
import struct
import sys
import time
from contextlib import suppress
from types import FrameType

from dithc.core import openmp
from dithc.core.logging import get_logger
from dithc.engine.comm.environment import HYDRA_PROXY, UNSET, name_of
from dithc.engine.comm.launch.exit_report import rank_here, report_exit, tell_launch
from dithc.engine.comm.launch.shm_cleanup import FOLDER, room
from dithc.engine.comm.launch.supervisor import follow_parent

log = get_logger(__name__)

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
# Time for which the guard of a dead rank keeps the launcher from killing the other ranks; they poll every second and
# then stop.
GRACE_SECONDS = 10.0
# Poll interval for a stopped rank; time until the log entry; time until the kill while ranks are still connecting.
LOOK_SECONDS, SAY_SECONDS, MEETING_SECONDS = 0.5, 5.0, 10.0

# Exit statuses of Python; MPI uses others.
STATUSES = (0, 1, 2, 75, 76, 128 + signal.SIGINT)

# Shared by rank and guard: seconds for which the rank may be stopped, 0 for no limit.
_most_stopped: mmap.mmap | None = None


def start_watchdog() -> None:
    """Fork, and return in the child; the parent exits with the child's status. Call once, before threads start."""
    if name_of(os.getppid()) == HYDRA_PROXY:  # MPICH's mpiexec on this node; ranks would otherwise outlive it unnoticed
        follow_parent(signal.SIGKILL)()
    global _most_stopped
    parent, _most_stopped = os.getpid(), mmap.mmap(-1, mmap.PAGESIZE)
    set_stop_timeout(MEETING_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    openmp.release_teams()
    child = os.fork()
    if child == 0:
        follow_parent(signal.SIGKILL)()
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
        return
    _watch(child)


def set_stop_timeout(seconds: float | None) -> None:
    """Limit the time for which a signal may stop this process; None for no limit. The guard kills it then.

    Time in which the guard is stopped too, as in a suspended job, does not count.
    """
    if _most_stopped is not None:
        struct.pack_into("d", _most_stopped, 0, seconds or 0.0)


def _stopped_at_most() -> float:
    assert _most_stopped is not None
    return float(struct.unpack_from("d", _most_stopped)[0])


def _watch(child: int) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, pass_on)
    rank = rank_here()
    status, stopped = _ended(child, rank)
    if not os.WIFSIGNALED(status):
        chosen = os.waitstatus_to_exitcode(status)
        if chosen not in STATUSES and _stopped_at_most():
            log.error(
                "MPI ended rank %s in its start with status %d (fix: start the ranks by `dithc launch`, or by srun --mpi=pmi2 "
                "for MPICH; outside a launcher, `%s`)",
                *(rank, chosen, UNSET),
            )
        report_exit(chosen)
        os._exit(chosen)
    ended_by = os.WTERMSIG(status)
    words = f"was ended by {signal.Signals(ended_by).name}"
    if stopped:
        words = f"was stopped by a signal for {stopped:g} s, while other ranks waited for it, and was killed"
    cause = ": out of memory, or killed from outside" if ended_by == signal.SIGKILL and not stopped else ""
    if ended_by == signal.SIGBUS:
        cause = f": a mapped file was cut or its file system is full ({FOLDER}: {room()[1] >> 20} MiB free)"
    log.error("rank %s (process %d) %s%s", rank, child, words, cause)
    tell_launch(f"rank {rank} {words}")
    time.sleep(GRACE_SECONDS)
    os._exit(128 + ended_by)


def _ended(child: int, rank: str) -> tuple[int, float]:
    """Return the wait status of the rank, and the seconds it was stopped if it was killed for that, else 0."""
    looks, is_stopped = 0, False
    while True:
        if is_stopped:
            time.sleep(LOOK_SECONDS)
        found, status = os.waitpid(child, os.WUNTRACED | (os.WCONTINUED | os.WNOHANG if is_stopped else 0))
        if found and not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            return status, 0.0
        if found:
            looks, is_stopped = 0, os.WIFSTOPPED(status)
            continue
        looks += 1
        seconds = looks * LOOK_SECONDS
        if seconds == SAY_SECONDS:
            log.warning("rank %s (process %d) has been stopped by a signal for %g s", rank, child, seconds)
        if 0 < _stopped_at_most() <= seconds:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], seconds
