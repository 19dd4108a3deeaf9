"""Exit statuses and signals of dithc's commands, the process tree of this machine from /proc, and turns of processes."""

import ctypes
import signal
import time
from pathlib import Path

STOPPED = 75  # stopped and saved: run again (EX_TEMPFAIL of sysexits.h)
HELD = 76  # another process works on the same run or folder
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # request a trainer to save and exit
FORWARDED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGHUP)  # forwarded by a process to the child that replaces it
SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG
LIBC = ctypes.CDLL(None)  # loaded here, because a child must not load libraries between fork and exec


def process_fields(pid: int | str, *, proc: Path = Path("/proc")) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; an empty list if the process is gone or the PID is invalid."""
    try:
        return (proc / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def start_time(pid: int | str) -> str | None:
    """Return the start time of a local process in clock ticks since boot; None if it has ended or is a zombie."""
    fields = process_fields(pid)
    return None if not fields or fields[0] in "ZX" else fields[19]


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send `number` to this process when its parent dies. Compare `os.getppid()` afterwards."""
    LIBC.prctl(SET_PARENT_DEATH_SIGNAL, int(number))


def child_processes(*, proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return the children of each process, without processes that have ended."""
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        state, parent = (process_fields(folder.name, proc=proc) or ["X", "0"])[:2]
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(folder.name))
    return children


def descendants(pid: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below a process, parents first."""
    children, pids = child_processes(proc=proc), [pid]
    for parent in pids:
        pids += children.get(parent, ())
    return pids[1:]


class Turns:
    """Steps of a process that its starter allows, so that processes on the same cores work in turns.

    The starter raises the number of allowed steps in a file. All ranks of the process wait for it, and one of them reports the
    finished steps in a second file. Waiting processes sleep.
    """

    PAUSE_SECONDS, LONGEST_WAIT_SECONDS = 0.05, 600.0

    def __init__(self, file: Path) -> None:
        self._allowed, self._finished = file, file.with_suffix(".finished")

    def allow(self, steps: int) -> None:
        """Allow this number of steps since the start; 0 ends the process."""
        _replace(self._allowed, steps)

    def report(self, steps: int) -> None:
        """Report the number of finished steps."""
        _replace(self._finished, steps)

    @property
    def finished(self) -> int | None:
        """Number of finished steps; None before the process waits for the first one."""
        return int(self._finished.read_text()) if self._finished.exists() else None

    def wait(self, finished: int) -> bool:
        """Wait until more steps are allowed than have been finished; return False at the end, or without a starter."""
        last = time.monotonic() + self.LONGEST_WAIT_SECONDS
        while time.monotonic() < last:
            allowed = int(self._allowed.read_text()) if self._allowed.exists() else None
            if allowed is not None and (allowed == 0 or allowed > finished):
                return allowed > 0
            time.sleep(self.PAUSE_SECONDS)
        return False


def _replace(file: Path, number: int) -> None:
    temporary = file.with_suffix(file.suffix + ".tmp")
    temporary.write_text(str(number))
    temporary.replace(file)
