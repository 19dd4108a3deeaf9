"""Supervision of the command line that starts ranks; ensures that no process outlives its purpose."""

import glob
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dithc.core.logging import get_logger, user_error
from dithc.core.processes import STOP_SIGNALS, child_processes, die_with_parent, start_time
from dithc.engine.comm.environment import HYDRA_PROXY, LOST_SUFFIX, STARTED_VARIABLE, name_of
from dithc.engine.comm.launch import shm_cleanup
from dithc.engine.comm.launch.launch_command import COMMAND_STATUSES, Launcher, Vendor

log = get_logger(__name__)

DRIVER_PID_VARIABLE, DRIVER_HOST_VARIABLE = "DITHC_DRIVER_PID", "DITHC_DRIVER_HOST"
STARTS, START_SECONDS, CONNECT_WARNING_SECONDS, NO_CHILDREN_SECONDS, POLL_SECONDS = 3, 600.0, 30.0, 5.0, 0.5
MIN_START_SECONDS = 0.1  # no rank writes output earlier, because Python itself takes longer to start
LOST_SECONDS = 10.0  # grace period after the first lost rank: the launcher, or the same cause, may end the other ranks
START_GRACE_SECONDS = 5.0  # ranks that are not connected have no state to save


def supervise(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    launcher: Launcher = "none",
    vendor: Vendor = "other",
    grace_seconds: float = 60.0,
    rendezvous_folder: Path | None = None,
) -> int:
    """Run a command in a separate process group and return its exit status: 128 + n after signal n.

    SIGTERM, SIGINT and SIGUSR1 are forwarded in the form that the launcher passes to its ranks. If the workflow driver
    named by DITHC_DRIVER_PID on this host exits, the command receives a stop request (a trainer then saves and exits).
    It is killed after the grace period, so that a killed driver leaves no processes.

    The connection of ranks occasionally fails for external reasons (a port is in use, a node responds late). Ranks that
    ended or hung before they were connected are therefore restarted; their work has not begun. This requires
    `rendezvous_folder`, which all nodes share: rank 0 creates a file in it once `connect_ranks` has connected all ranks.
    """
    launch = _Launch(argv, launcher, vendor, grace_seconds)
    if rendezvous_folder is None:
        return launch.run(environment, marker=None)
    _sweep(rendezvous_folder)
    for start in range(1, STARTS + 1):
        # A separate file per start, so that a late write from a rank on another node does not affect the next start.
        marker = rendezvous_folder / f"{_marker_prefix()}{os.getpid()}.{time.time_ns()}"
        segments, started_at = shm_cleanup.names(), time.monotonic()
        try:
            status = launch.run({**environment, STARTED_VARIABLE: str(marker)}, marker=marker)
            has_started, is_early = marker.exists(), time.monotonic() < started_at + MIN_START_SECONDS
            # MPICH's mpiexec exits with the number of a signal that ends it during its start; SIGINT's number is the
            # status of invalid input.
            is_signal = launcher == "mpiexec" and status == signal.SIGINT and is_early
            if not has_started and (rank_status := _read_loss(marker)[1]):
                status = rank_status  # status of a rank; the launcher's status only reports that it was ended
        finally:
            for path in rendezvous_folder.glob(f"{glob.escape(marker.name)}*"):
                path.unlink(missing_ok=True)
            shm_cleanup.sweep(segments)
        if has_started or launch.signals or (status in COMMAND_STATUSES and not is_signal) or start == STARTS:
            break
        log.warning("the ranks did not connect (status %d): starting them again, %d of %d", status, start + 1, STARTS)
        time.sleep(start)  # remains of the launcher need a moment to disappear
    return status


@dataclass(frozen=True)
class _Driver:
    """Process on this host, distinguished by its start time from a later process with the same number."""

    pid: int
    start: str | None

    def is_gone(self) -> bool:
        return self.start is None or start_time(self.pid) != self.start


@dataclass(frozen=True)
class _Launch:
    """A launcher's command line; `signals` are the signals received during its last run."""

    argv: Sequence[str]
    launcher: Launcher
    vendor: Vendor
    grace_seconds: float
    signals: list[signal.Signals] = field(default_factory=list)

    def run(self, environment: Mapping[str, str], *, marker: Path | None) -> int:
        driver = _find_driver(environment)
        self.signals.clear()
        try:
            child = subprocess.Popen(
                self.argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,  # a launcher in a background group must not read the terminal
                process_group=0,
                preexec_fn=partial(
                    die_with_parent, carried_signal(signal.SIGTERM, launcher=self.launcher, vendor=self.vendor)
                ),
            )
        except OSError as error:
            fix = "check the command after `--`; a workflow rule only finds programs on its PATH"
            got = f"{self.argv[0]}: {error}"
            raise user_error("command to launch", got=got, expected="a program", fix=fix) from error

        def forward(number: int, _: object) -> None:
            self.signals.append(signal.Signals(number))
            self._send(child, signal.Signals(number))

        previous = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
        try:
            return self._wait(child, driver=driver, marker=marker)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _send(self, child: "subprocess.Popen[bytes]", requested: signal.Signals) -> None:
        """Send a signal to the launcher, which forwards it, or to the process group of a plain command (maybe a shell)."""
        number = carried_signal(requested, launcher=self.launcher, vendor=self.vendor)
        log.info("passing %s on to %s", number.name, self.argv[0])
        try:
            os.killpg(child.pid, number) if self.launcher == "none" else child.send_signal(number)
        except ProcessLookupError:
            log.info("it has already ended")

    def _wait(self, child: "subprocess.Popen[bytes]", *, driver: _Driver | None, marker: Path | None) -> int:
        kill_at: float | None = None
        monitor, grace = _StartMonitor(self), self.grace_seconds
        while True:
            try:
                status = child.wait(timeout=POLL_SECONDS)
                return status if status >= 0 else 128 - status
            except subprocess.TimeoutExpired:
                pass
            if marker is not None and marker.exists():
                marker = None
            if kill_at is None and (reason := monitor.failure(child.pid, marker)):
                log.warning("%s: ending them", reason)
                os.killpg(child.pid, signal.SIGTERM)
                marker, grace = None, min(grace, START_GRACE_SECONDS)
                kill_at = time.monotonic() + grace
            if kill_at is None and driver is not None and driver.is_gone():
                log.warning("the workflow driver (process %d) is gone: stopping, %g s to save", driver.pid, grace)
                self._send(child, signal.SIGTERM)
                kill_at = time.monotonic() + grace
            elif kill_at is not None and time.monotonic() > kill_at:
                log.warning("still running after %g s: killing it", grace)
                os.killpg(child.pid, signal.SIGKILL)
                kill_at = float("inf")


def carried_signal(received: signal.Signals, *, launcher: Launcher, vendor: Vendor) -> signal.Signals:
    """Return the signal that makes the launcher send its ranks a stop request.

    Open MPI's mpiexec kills its ranks immediately on SIGTERM and SIGINT, and so does srun on SIGTERM (the first SIGINT
    only requests the status); both forward SIGUSR1. MPICH's mpiexec and a plain child forward each signal unchanged.
    """
    if launcher == "srun" or (launcher == "mpiexec" and vendor == "openmpi"):
        return signal.SIGUSR1
    return received


class _StartMonitor:
    """Monitor of a launcher, and of its ranks until they are connected."""

    def __init__(self, launch: _Launch) -> None:
        self._is_mpich = launch.launcher == "mpiexec" and launch.vendor == "mpich"
        # otherwise the ranks may belong to a daemon
        self._has_children = launch.launcher == "mpiexec" and launch.vendor != "other"
        self._start_time = self._last_poll = time.monotonic()
        self._without_children_since: float | None = None
        self._ranks: set[int] = set()  # processes of this node
        self._lost_at: float | None = None
        self._has_warned = False

    def failure(self, pid: int, marker: Path | None) -> str:
        """Return the reason to end the launcher; empty while it may succeed.

        `marker` is the file that exists once all ranks are connected; None if they are, or if this is not reported.
        """
        now = time.monotonic()
        if marker is None and (not self._has_children or now < self._last_poll + NO_CHILDREN_SECONDS):
            return ""  # the list of processes is long
        children, self._last_poll = child_processes(), now
        # MPICH's mpiexec waits forever if its processes end before they call back.
        has_no_children = self._has_children and pid not in children
        self._without_children_since = (self._without_children_since or now) if has_no_children else None
        if has_no_children and now > (self._without_children_since or now) + NO_CHILDREN_SECONDS:
            return f"mpiexec (process {pid}) has had no child process for {NO_CHILDREN_SECONDS:g} s: its ranks, ssh or srun ended"
        if marker is None:
            return ""
        message, status = _read_loss(marker)
        if message or self._has_lost_one(pid, children):
            self._lost_at = self._lost_at or now
            if (message and not status) or now > self._lost_at + LOST_SECONDS:
                return f"{message or 'a rank ended'} before the ranks were connected"
        if now > self._start_time + START_SECONDS:
            return f"the ranks are not connected after {START_SECONDS:g} s"
        if now > self._start_time + CONNECT_WARNING_SECONDS and not self._has_warned:
            self._has_warned = True
            names = ", ".join(sorted({name_of(child) for child in children.get(pid, ())})) or "no process"
            log.warning(
                "the ranks are not connected after %g s: %s (process %d) runs %s; waiting up to %g s",
                *(CONNECT_WARNING_SECONDS, name_of(pid), pid, names, START_SECONDS),
            )
        return ""

    def _has_lost_one(self, pid: int, children: Mapping[int, list[int]]) -> bool:
        """Return whether a local rank of MPICH's mpiexec is gone, which neither it nor other ranks may notice."""
        if not self._is_mpich:
            return False
        proxies = [child for child in children.get(pid, ()) if name_of(child) == HYDRA_PROXY]
        ranks = {rank for proxy in proxies for rank in children.get(proxy, ()) if rank in self._ranks or _is_rank(rank)}
        is_gone = bool(proxies and self._ranks - ranks)
        self._ranks |= ranks
        return is_gone


def _sweep(folder: Path) -> None:
    """Remove files of killed launches of this host, including one with the process number of this launch."""
    for path in folder.glob(f"{glob.escape(_marker_prefix())}*"):
        pid = path.name.removeprefix(_marker_prefix()).partition(".")[0]
        if pid.isdigit() and (int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists()):
            path.unlink(missing_ok=True)


def _marker_prefix() -> str:
    return f".dithc-rendezvous-{socket.gethostname()}-"


def _read_loss(marker: Path) -> tuple[str, int]:
    """Return message and status of a watchdog whose rank ended before all were connected; "" and 0 if none."""
    try:
        message, _, status = marker.with_name(marker.name + LOST_SUFFIX).read_text().partition("\n")
    except FileNotFoundError:
        return "", 0
    return message or "a rank ended", int(status) if status.isdigit() else 0


def _is_rank(pid: int) -> bool:
    try:
        return b"\0PMI_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _find_driver(environment: Mapping[str, str]) -> _Driver | None:
    pid = environment.get(DRIVER_PID_VARIABLE, "")
    if not pid.isdigit() or environment.get(DRIVER_HOST_VARIABLE) != socket.gethostname():
        return None
    return _Driver(int(pid), start_time(int(pid)))
