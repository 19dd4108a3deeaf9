"""Supervision of the command line that starts ranks; ensures that no process outlives its purpose."""

import ctypes
import glob
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dithc.core.logging import get_logger, user_error
from dithc.engine.comm.environment import HYDRA_PROXY, LOST_SUFFIX, STARTED_VARIABLE, name_of, process_fields
from dithc.engine.comm.launch import shm_cleanup
from dithc.engine.comm.launch.launch_command import WORDS_OF_THE_COMMAND, Launcher, Vendor

log = get_logger(__name__)

DRIVER_PID_VARIABLE, DRIVER_HOST_VARIABLE = "DITHC_DRIVER_PID", "DITHC_DRIVER_HOST"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STARTS, START_SECONDS, LATE_SECONDS, CHILDLESS_SECONDS, POLL_SECONDS = 3, 600.0, 30.0, 5.0, 0.5
SOONEST_SECONDS = 0.1  # no rank writes output earlier, because Python itself takes longer to start
LOST_SECONDS = 10.0  # grace period after the first lost rank: the launcher, or the same cause, may end the other ranks
UNMET_GRACE_SECONDS = 5.0  # ranks that are not connected have no state to save
SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG


def supervise(
    line: Sequence[str],
    *,
    environment: Mapping[str, str],
    launcher: Launcher = "none",
    vendor: Vendor = "other",
    grace_seconds: float = 60.0,
    meet_in: Path | None = None,
) -> int:
    """Run the line in a separate process group and return its exit status: 128 + n after signal n.

    SIGTERM, SIGINT and SIGUSR1 are forwarded in the form that the launcher passes to its ranks. If the workflow driver
    named by DITHC_DRIVER_PID on this host exits, the command receives a stop request (a trainer then saves and exits).
    It is killed after the grace period, so that a killed driver leaves no processes.

    The connection of ranks occasionally fails for external reasons (a port is in use, a node responds late). Ranks that
    ended or hung before they were connected are therefore restarted; their work has not begun. This requires `meet_in`:
    a folder shared by all nodes, in which rank 0 creates a file once all ranks are connected by `connect_ranks`.
    """
    how = _How(launcher, vendor, grace_seconds)
    if meet_in is None:
        return _supervise_once(line, environment=environment, how=how, met=None, told=[])
    _sweep(meet_in)
    for start in range(1, STARTS + 1):
        # A separate file per start, so that a late write from a rank on another node does not affect the next start.
        met = meet_in / f"{_ours()}{os.getpid()}.{time.time_ns()}"
        told: list[signal.Signals] = []
        before, began = shm_cleanup.names(), time.monotonic()
        try:
            variables = {**environment, STARTED_VARIABLE: str(met)}
            status = _supervise_once(line, environment=variables, how=how, met=met, told=told)
            has_met, soon = met.exists(), time.monotonic() < began + SOONEST_SECONDS
            # MPICH's mpiexec exits with the number of a signal that ends it during its start; SIGINT's number is the
            # status of invalid input.
            is_launchers = launcher == "mpiexec" and status == signal.SIGINT and soon
            if not has_met and (chosen := _lost(met)[1]):
                status = chosen  # status of a rank; the launcher's status only reports that it was ended
        finally:
            for path in meet_in.glob(f"{glob.escape(met.name)}*"):
                path.unlink(missing_ok=True)
            shm_cleanup.sweep(before)
        if has_met or told or (status in WORDS_OF_THE_COMMAND and not is_launchers) or start == STARTS:
            break
        log.warning(
            "the ranks did not find each other (status %d): starting them again, %d of %d", status, start + 1, STARTS
        )
        time.sleep(start)  # remains of the launcher need a moment to disappear
    return status


@dataclass(frozen=True)
class _How:
    launcher: Launcher
    vendor: Vendor
    grace_seconds: float


def _supervise_once(
    line: Sequence[str], *, environment: Mapping[str, str], how: _How, met: Path | None, told: list[signal.Signals]
) -> int:
    driver = _driver(environment)
    stop = carried_signal(signal.SIGTERM, launcher=how.launcher, vendor=how.vendor)
    try:
        child = subprocess.Popen(
            line,
            env=dict(environment),
            stdin=subprocess.DEVNULL,  # a launcher in a background group must not read the terminal
            process_group=0,
            preexec_fn=follow_parent(stop),
        )
    except OSError as error:
        fix = "check the command after `--`; a workflow rule only finds programs on its PATH"
        raise user_error("command to launch", got=f"{line[0]}: {error}", expected="a program", fix=fix) from error

    def pass_on(number: int, _: object) -> None:
        told.append(signal.Signals(number))
        carried = carried_signal(signal.Signals(number), launcher=how.launcher, vendor=how.vendor)
        _send(child, carried, launcher=how.launcher)

    previous = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        return _wait(child, driver=driver, stop=stop, how=how, met=met)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def carried_signal(received: signal.Signals, *, launcher: Launcher, vendor: Vendor) -> signal.Signals:
    """Return the signal that makes the launcher send its ranks a stop request.

    Open MPI's mpiexec kills its ranks immediately on SIGTERM and SIGINT, and so does srun on SIGTERM (the first SIGINT
    only requests the status); both forward SIGUSR1. MPICH's mpiexec and a plain child forward each signal unchanged.
    """
    if launcher == "srun" or (launcher == "mpiexec" and vendor == "openmpi"):
        return signal.SIGUSR1
    return received


@dataclass(frozen=True)
class _Driver:
    """Process on this host, distinguished by its start time from a later process with the same number."""

    pid: int
    start: str | None

    def gone(self) -> bool:
        return self.start is None or _start_time(self.pid) != self.start


class _Start:
    """Monitor of a launcher, and of its ranks until they are connected."""

    def __init__(self, how: _How) -> None:
        self._is_mpich = how.launcher == "mpiexec" and how.vendor == "mpich"
        # otherwise the ranks may belong to a daemon
        self._has_children = how.launcher == "mpiexec" and how.vendor != "other"
        self._began = self._looked = time.monotonic()
        self._childless_since: float | None = None
        self._ranks: set[int] = set()  # processes of this node
        self._lost_at: float | None = None
        self._is_late = False

    def in_vain(self, pid: int, met: Path | None) -> str:
        """Return the reason to end the launcher; empty while it may succeed.

        `met` is the file that exists once all ranks are connected; None if they are, or if this is not reported.
        """
        now = time.monotonic()
        if met is None and (not self._has_children or now < self._looked + CHILDLESS_SECONDS):
            return ""  # the list of processes is long
        children, self._looked = _children(), now
        # MPICH's mpiexec waits forever if its processes end before they call back.
        is_childless = self._has_children and pid not in children
        self._childless_since = (self._childless_since or now) if is_childless else None
        if is_childless and now > (self._childless_since or now) + CHILDLESS_SECONDS:
            return f"mpiexec (process {pid}) has had no child process for {CHILDLESS_SECONDS:g} s: its ranks, ssh or srun ended"
        if met is None:
            return ""
        words, status = _lost(met)
        if words or self._has_lost_one(pid, children):
            self._lost_at = self._lost_at or now
            if (words and not status) or now > self._lost_at + LOST_SECONDS:
                return f"{words or 'a rank ended'} before the ranks had found each other"
        if now > self._began + START_SECONDS:
            return f"the ranks have not found each other after {START_SECONDS:g} s"
        if now > self._began + LATE_SECONDS and not self._is_late:
            self._is_late = True
            names = ", ".join(sorted({name_of(child) for child in children.get(pid, ())})) or "no process"
            log.warning(
                "the ranks have not found each other after %g s: %s (process %d) runs %s; waiting up to %g s",
                *(LATE_SECONDS, name_of(pid), pid, names, START_SECONDS),
            )
        return ""

    def _has_lost_one(self, pid: int, children: Mapping[int, set[int]]) -> bool:
        """Return whether a local rank of MPICH's mpiexec is gone, which neither it nor other ranks may notice."""
        if not self._is_mpich:
            return False
        proxies = [child for child in children.get(pid, ()) if name_of(child) == HYDRA_PROXY]
        found = {rank for proxy in proxies for rank in children.get(proxy, ()) if rank in self._ranks or _is_rank(rank)}
        is_gone = bool(proxies and self._ranks - found)
        self._ranks |= found
        return is_gone


def _sweep(folder: Path) -> None:
    """Remove files of killed launches of this host, including one with the process number of this launch."""
    for path in folder.glob(f"{glob.escape(_ours())}*"):
        pid = path.name.removeprefix(_ours()).partition(".")[0]
        if pid.isdigit() and (int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists()):
            path.unlink(missing_ok=True)


def _ours() -> str:
    return f".dithc-met-{socket.gethostname()}-"


def _lost(met: Path) -> tuple[str, int]:
    """Return message and status of a guard whose rank ended before all were connected; "" and 0 if none."""
    try:
        words, _, status = met.with_name(met.name + LOST_SUFFIX).read_text().partition("\n")
    except FileNotFoundError:
        return "", 0
    return words or "a rank ended", int(status) if status.isdigit() else 0


def _is_rank(pid: int) -> bool:
    try:
        return b"\0PMI_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _children() -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        state, parent = (process_fields(path.name) or ["X", "0"])[:2]
        if state not in "ZX":
            found.setdefault(int(parent), set()).add(int(path.name))
    return found


def _driver(environment: Mapping[str, str]) -> _Driver | None:
    pid = environment.get(DRIVER_PID_VARIABLE, "")
    if not pid.isdigit() or environment.get(DRIVER_HOST_VARIABLE) != socket.gethostname():
        return None
    return _Driver(int(pid), _start_time(int(pid)))


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in kernel ticks; None if it is gone or a zombie."""
    fields = process_fields(pid)
    return None if not fields or fields[0] in "ZX" else fields[19]


def follow_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a function for a child: the kernel sends `number` if this process dies."""
    library = ctypes.CDLL(None)
    return lambda: library.prctl(SET_PARENT_DEATH_SIGNAL, int(number))


def _send(child: "subprocess.Popen[bytes]", number: signal.Signals, *, launcher: Launcher) -> None:
    """Send a signal to a launcher, which forwards it, or to the process group of a plain command (maybe a shell)."""
    log.info("passing %s on to %s", number.name, child.args[0] if isinstance(child.args, Sequence) else child.args)
    try:
        os.killpg(child.pid, number) if launcher == "none" else child.send_signal(number)
    except ProcessLookupError:
        log.info("it has already ended")


def _wait(
    child: "subprocess.Popen[bytes]", *, driver: _Driver | None, stop: signal.Signals, how: _How, met: Path | None
) -> int:
    kill_at: float | None = None
    start, grace = _Start(how), how.grace_seconds
    while True:
        try:
            status = child.wait(timeout=POLL_SECONDS)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            pass
        if met is not None and met.exists():
            met = None
        if kill_at is None and (why := start.in_vain(child.pid, met)):
            log.warning("%s: ending them", why)
            os.killpg(child.pid, signal.SIGTERM)
            met, grace = None, min(grace, UNMET_GRACE_SECONDS)
            kill_at = time.monotonic() + grace
        if kill_at is None and driver is not None and driver.gone():
            log.warning("the workflow driver (process %d) is gone: stopping, %g s to save", driver.pid, grace)
            _send(child, stop, launcher=how.launcher)
            kill_at = time.monotonic() + grace
        elif kill_at is not None and time.monotonic() > kill_at:
            log.warning("still running after %g s: killing it", grace)
            os.killpg(child.pid, signal.SIGKILL)
            kill_at = float("inf")
