"""Builds the line that starts ranks, runs it as a child, and sees to it that nothing outlives its purpose."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dithc.comm.environment import EXPECTED_RANKS_VARIABLE
from dithc.log import logger, problem

log = logger(__name__)

Launcher = Literal["none", "mpiexec", "srun"]
Vendor = Literal["mpich", "openmpi", "other"]

MPIEXEC_VARIABLE = "DITHC_MPIEXEC"
DRIVER_PID_VARIABLE, DRIVER_HOST_VARIABLE = "DITHC_DRIVER_PID", "DITHC_DRIVER_HOST"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG


@dataclass(frozen=True)
class MpiExec:
    """A launcher of MPI programs and whose it is; vendors want different options."""

    path: str
    vendor: Vendor


def launch_line(
    command: Sequence[str],
    *,
    launcher: Launcher,
    nodes: int = 1,
    ranks: int = 1,
    cpus: int = 1,
    mpiexec: MpiExec | None = None,
    srun_mpi: str = "pmi2",
    root_user: bool = False,
) -> list[str]:
    """The words that start `command` on `ranks` ranks over `nodes` nodes; one rank needs no launcher.

    Args:
        ranks: in all, not per node.
        cpus: per rank; for srun, which binds. mpiexec binds nothing: the ranks place themselves.
        mpiexec: needed for launcher mpiexec with several ranks.
        srun_mpi: the process management interface that Slurm offers the ranks.
        root_user: whether root starts it, which Open MPI wants confirmed.

    Raises:
        UserError: several ranks without a launcher, fewer ranks than nodes, a number below one, an empty command.
    """
    _check(command, launcher=launcher, nodes=nodes, ranks=ranks, cpus=cpus)
    if ranks == 1 or launcher == "none":
        return list(command)
    if launcher == "srun":
        size = ["-N", str(nodes), "-n", str(ranks), "-c", str(cpus)]
        return ["srun", f"--mpi={srun_mpi}", *size, "--kill-on-bad-exit=1", "--wait=60", *command]
    assert mpiexec is not None, "launcher mpiexec needs its path"
    per_node = -(-ranks // nodes)
    if mpiexec.vendor == "openmpi":
        mapping = f"ppr:{per_node}:node:OVERSUBSCRIBE" if nodes > 1 else ":OVERSUBSCRIBE"
        options = ["--bind-to", "none", "--map-by", mapping, "-x", "OMP_NUM_THREADS", "-x", EXPECTED_RANKS_VARIABLE]
        options = [*(["--allow-run-as-root"] if root_user else []), *options]
    else:
        options = ["-ppn", str(per_node)] if nodes > 1 else []
    return [mpiexec.path, *options, "-n", str(ranks), *command]


def find_mpiexec(explicit: str | None = None) -> MpiExec:
    """The mpiexec to use: the one named, else the one beside this Python (an MPI wheel's), else the first on PATH.

    Raises:
        UserError: there is none, or the one named is not an absolute path to a program.
    """
    named = explicit or os.environ.get(MPIEXEC_VARIABLE)
    beside = Path(sys.executable).parent / "mpiexec"
    if named:
        if not Path(named).is_absolute() or not os.access(named, os.X_OK):
            remedy = f"name the mpiexec of the MPI that mpi4py loads, in --mpiexec or {MPIEXEC_VARIABLE}"
            raise problem("mpiexec", got=named, expected="absolute path of an executable file", remedy=remedy)
        path = named
    elif os.access(beside, os.X_OK):
        path = str(beside)
    else:
        found = shutil.which("mpiexec")
        if found is None:
            remedy = (
                "install an MPI (`pip install 'dithc[mpi]'` brings MPICH), or load your site's and set "
                + MPIEXEC_VARIABLE
            )
            raise problem("launcher mpiexec", got="none found", expected=f"{beside}, or one on PATH", remedy=remedy)
        path = found
        log.info("mpiexec: none beside this Python, using %s from PATH", path)
    return MpiExec(path, _vendor(path))


def supervise(
    line: Sequence[str],
    *,
    environment: Mapping[str, str],
    launcher: Launcher = "none",
    vendor: Vendor = "other",
    grace_seconds: float = 60.0,
    poll_seconds: float = 0.5,
) -> int:
    """Runs the line as a child in a process group of its own and returns its exit status (128 + n after signal n).

    SIGTERM, SIGINT and SIGUSR1 are passed on in the form the launcher carries to its ranks. When the workflow driver that
    DITHC_DRIVER_PID names on this host is gone, the command is told to stop (a trainer then saves and leaves), and killed
    after the grace time: a killed driver leaves nothing running.

    Raises:
        UserError: the program does not exist.
    """
    driver = _driver(environment)
    stop = carried_signal(signal.SIGTERM, launcher=launcher, vendor=vendor)
    try:
        child = subprocess.Popen(
            line,
            env=dict(environment),
            stdin=subprocess.DEVNULL,  # a launcher in a background group must not read the terminal
            process_group=0,
            preexec_fn=follow_parent(stop),
        )
    except OSError as error:
        remedy = "check the command after `--`; a rule of the workflow finds programs on its PATH only"
        raise problem("command to launch", got=f"{line[0]}: {error}", expected="a program", remedy=remedy) from error

    def pass_on(number: int, _: object) -> None:
        _send(child, carried_signal(signal.Signals(number), launcher=launcher, vendor=vendor), launcher=launcher)

    previous = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        return _wait(child, driver=driver, stop=stop, launcher=launcher, grace=grace_seconds, poll=poll_seconds)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def carried_signal(received: signal.Signals, *, launcher: Launcher, vendor: Vendor) -> signal.Signals:
    """The signal to send so that ranks get a request to stop.

    Open MPI's mpiexec kills its ranks at once on SIGTERM and SIGINT and passes on SIGUSR1; srun takes the first SIGINT for
    a question about the status and passes on SIGTERM; MPICH's mpiexec and a plain child take each as it is.
    """
    if launcher == "mpiexec" and vendor == "openmpi":
        return signal.SIGUSR1
    if launcher == "srun" and received == signal.SIGINT:
        return signal.SIGTERM
    return received


def _check(command: Sequence[str], *, launcher: Launcher, nodes: int, ranks: int, cpus: int) -> None:
    if not command:
        raise problem(
            "launch", got="no command", expected="-- program arguments", remedy="write the command after `--`"
        )
    for name, value in (("nodes", nodes), ("ranks", ranks), ("cpus", cpus)):
        if value < 1:
            raise problem(f"launch --{name}", got=value, expected="1 or more", remedy=f"correct --{name}")
    if ranks < nodes:
        raise problem(
            "launch", got=f"{ranks} rank(s) on {nodes} nodes", expected="a rank on every node", remedy="lower --nodes"
        )
    if launcher == "none" and ranks > 1:
        raise problem(
            "launch --launcher none",
            got=f"{ranks} ranks",
            expected="1 rank",
            remedy="use --launcher mpiexec on one machine, srun inside a Slurm job",
        )


def _vendor(path: str) -> Vendor:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "other"
    text = (done.stdout + done.stderr).lower()
    if "open mpi" in text or "openrte" in text or "prrte" in text:
        return "openmpi"
    return "mpich" if "hydra" in text or "mpich" in text or "intel" in text else "other"


@dataclass(frozen=True)
class _Driver:
    """A process on this host, told from a later one with the same number by its start time."""

    pid: int
    start: str | None

    def gone(self) -> bool:
        return self.start is None or _start_time(self.pid) != self.start


def _driver(environment: Mapping[str, str]) -> _Driver | None:
    pid = environment.get(DRIVER_PID_VARIABLE, "")
    if not pid.isdigit() or environment.get(DRIVER_HOST_VARIABLE) != socket.gethostname():
        return None
    return _Driver(int(pid), _start_time(int(pid)))


def _start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when it is gone, or dead and only not yet waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def follow_parent(number: signal.Signals) -> Callable[[], None]:
    """Makes the kernel send `number` to the child when this process dies without a chance to pass anything on."""
    library = ctypes.CDLL(None)
    return lambda: library.prctl(SET_PARENT_DEATH_SIGNAL, int(number))


def _send(child: "subprocess.Popen[bytes]", number: signal.Signals, *, launcher: Launcher) -> None:
    """To a launcher alone, which tells its ranks; to the whole group of a plain command, which may be a shell."""
    log.info("passing %s on to %s", number.name, child.args[0] if isinstance(child.args, Sequence) else child.args)
    try:
        os.killpg(child.pid, number) if launcher == "none" else child.send_signal(number)
    except ProcessLookupError:
        log.info("it has already ended")


def _wait(
    child: "subprocess.Popen[bytes]",
    *,
    driver: _Driver | None,
    stop: signal.Signals,
    launcher: Launcher,
    grace: float,
    poll: float,
) -> int:
    kill_at: float | None = None
    while True:
        try:
            status = child.wait(timeout=poll)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            pass
        if kill_at is None and driver is not None and driver.gone():
            log.warning("the workflow driver (process %d) is gone: stopping, %g s to save", driver.pid, grace)
            _send(child, stop, launcher=launcher)
            kill_at = time.monotonic() + grace
        elif kill_at is not None and time.monotonic() > kill_at:
            log.warning("still running after %g s: killing it", grace)
            os.killpg(child.pid, signal.SIGKILL)
            kill_at = float("inf")
