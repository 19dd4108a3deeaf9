"""Watchdog of a rank: a parent process that outlives the rank and reports its death.

A launcher that loses a rank kills the other ranks immediately, and reports a process number at best. Therefore each
rank forks before it connects, and the launcher monitors the parent. If a signal kills the rank, the parent logs this and
stays until the other ranks have detected the loss and named the lost rank. `dithc launch` is notified too, because
ranks that are still connecting do not detect it.

The watchdog also names a rank that a signal has stopped. It kills the rank if the other ranks depend on it: until all are
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
from dithc.core.processes import FORWARDED, HELD, STOPPED, die_with_parent
from dithc.engine.comm.environment import HYDRA_PROXY, UNSET, name_of
from dithc.engine.comm.launch.exit_report import notify_launch, rank_here, report_exit
from dithc.engine.comm.launch.shm_cleanup import FOLDER, size_and_free

log = get_logger(__name__)

# Time for which the watchdog of a dead rank keeps the launcher from killing the other ranks; they poll every second and
# then stop.
GRACE_SECONDS = 10.0
# Poll interval for a stopped rank; time until the log entry; time until the kill while ranks are still connecting.
POLL_SECONDS, LOG_SECONDS, STOP_TIMEOUT_SECONDS = 0.5, 5.0, 10.0

# Exit statuses of Python; MPI uses others.
STATUSES = (0, 1, 2, STOPPED, HELD, 128 + signal.SIGINT)

# Shared by rank and watchdog: seconds for which the rank may be stopped, 0 for no limit.
_stop_limit: mmap.mmap | None = None


def start_watchdog() -> None:
    """Fork, and return in the child; the parent exits with the child's status. Call once, before threads start."""
    if name_of(os.getppid()) == HYDRA_PROXY:  # MPICH's mpiexec on this node; ranks would otherwise outlive it unnoticed
        die_with_parent()
    global _stop_limit
    parent, _stop_limit = os.getpid(), mmap.mmap(-1, mmap.PAGESIZE)
    set_stop_timeout(STOP_TIMEOUT_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    openmp.release_teams()
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
        return
    _watch(child)


def set_stop_timeout(seconds: float | None) -> None:
    """Limit the time for which a signal may stop this process; None for no limit. The watchdog kills it then.

    Time in which the watchdog is stopped too, as in a suspended job, does not count.
    """
    if _stop_limit is not None:
        struct.pack_into("d", _stop_limit, 0, seconds or 0.0)


def _max_stopped_seconds() -> float:
    assert _stop_limit is not None
    return float(struct.unpack_from("d", _stop_limit)[0])


def _watch(child: int) -> None:
    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    rank = rank_here()
    status, stopped = _wait_for_exit(child, rank)
    if not os.WIFSIGNALED(status):
        exit_status = os.waitstatus_to_exitcode(status)
        if exit_status not in STATUSES and _max_stopped_seconds():
            log.error(
                "MPI ended rank %s in its start with status %d (fix: start the ranks by `dithc launch`, or by srun --mpi=pmi2 "
                "for MPICH; outside a launcher, `%s`)",
                *(rank, exit_status, UNSET),
            )
        report_exit(exit_status)
        os._exit(exit_status)
    signal_number = os.WTERMSIG(status)
    message = f"was ended by {signal.Signals(signal_number).name}"
    if stopped:
        message = f"was stopped by a signal for {stopped:g} s, while other ranks waited for it, and was killed"
    cause = ": out of memory, or killed from outside" if signal_number == signal.SIGKILL and not stopped else ""
    if signal_number == signal.SIGBUS:
        cause = f": a mapped file was cut or its file system is full ({FOLDER}: {size_and_free()[1] >> 20} MiB free)"
    log.error("rank %s (process %d) %s%s", rank, child, message, cause)
    notify_launch(f"rank {rank} {message}")
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal_number)


def _wait_for_exit(child: int, rank: str) -> tuple[int, float]:
    """Return the wait status of the rank, and the seconds it was stopped if it was killed for that, else 0."""
    polls, is_stopped = 0, False
    while True:
        if is_stopped:
            time.sleep(POLL_SECONDS)
        pid, status = os.waitpid(child, os.WUNTRACED | (os.WCONTINUED | os.WNOHANG if is_stopped else 0))
        if pid and not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            return status, 0.0
        if pid:
            polls, is_stopped = 0, os.WIFSTOPPED(status)
            continue
        polls += 1
        seconds = polls * POLL_SECONDS
        if seconds == LOG_SECONDS:
            log.warning("rank %s (process %d) has been stopped by a signal for %g s", rank, child, seconds)
        if 0 < _max_stopped_seconds() <= seconds:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], seconds
