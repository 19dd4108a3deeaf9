"""Conditions that a command establishes before it loads libraries: UTF-8, open streams, writable folders, memory."""

import gc
import io
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dithc.core.processes import FORWARDED, HELD, STOPPED, die_with_parent
from dithc.core.units import format_bytes

STANDARD_ERROR = 2  # highest number of the three streams that every program expects to be open
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
STATUSES = (2, STOPPED, HELD)  # exit statuses with which dithc ends after it has logged the reason
LIGHT = {"run", "status", "launch", "verify", "show"}  # commands without torch
has_parent = False
RAISE_LIMIT = "raise the limit (`ulimit -v unlimited; ulimit -d unlimited`), or request more memory from the scheduler"


def limit_bytes() -> int | None:
    """Return the limit of this process on address space or data (`ulimit -v`, `ulimit -d`), or None."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


# Checked before other modules are imported. Libraries that lack memory end the process, hang, or raise errors of any
# type.
MIN_BYTES = (512 if sys.argv[1:2] and sys.argv[1] in LIGHT else 1024) << 20
if (limit_bytes() or MIN_BYTES) < MIN_BYTES:
    sys.stderr.write(
        f"dithc: error: out of memory\n  got:      a limit of {limit_bytes()} bytes on the memory of a process\n"
        f"  expected: {MIN_BYTES} bytes, and several times that to train\n  fix:      {RAISE_LIMIT}\n"
    )
    raise SystemExit(2)


def use_utf8() -> None:
    """Restart this program in Python's UTF-8 mode under another encoding. Child processes inherit the mode."""
    os.environ["PYTHONUTF8"] = "1"
    if sys.getfilesystemencoding() != "utf-8":
        command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
        os.execvp(command[0], [command[0], b"-X", b"utf8", *command[1:]])


def open_streams() -> None:
    """Open closed standard streams on /dev/null and make them accept any text.

    Data files must not get the numbers of standard streams. Control characters of standard output are escaped.
    """
    from dithc.core.logging import escaping

    while (number := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    escaping.escape_stream(sys.stdout)


def choose_folders() -> None:
    """Replace unusable folders for temporary files and caches, also for child processes. Log each choice."""
    from dithc.core import caches
    from dithc.core.logging import get_logger

    log = get_logger("dithc.start")
    if sys.orig_argv[1:3] == ["-X", "utf8"]:
        log.info("text and file names are UTF-8, independent of the locale")
    with suppress(FileNotFoundError):  # raised again when a command needs a temporary file
        configured, used = os.environ.get("TMPDIR"), tempfile.gettempdir()
        if configured and os.path.abspath(configured) != used:
            os.environ["TMPDIR"] = used
            log.warning(f"temporary files are in {used}: TMPDIR={configured} is not a writable folder with free space")
    if (cache := caches.cache_home()) is not None:
        os.environ["XDG_CACHE_HOME"] = str(cache)
        configured = os.environ.get("MPLCONFIGDIR")
        if configured and not caches.is_writable(Path(configured)):
            log.warning(f"the cache of matplotlib is in {cache}: MPLCONFIGDIR={configured} is not writable")
        if not configured or not caches.is_writable(Path(configured)):
            os.environ["MPLCONFIGDIR"] = str(cache / "matplotlib")


def import_torch() -> None:
    """Import torch without collections of cyclic garbage, which take a third of the time and find nothing."""
    gc.disable()
    import_module("torch")
    gc.freeze()
    gc.enable()


@contextmanager
def supervised(command: str) -> Iterator[None]:
    """Run the body in a child process if memory is limited, and report a child ended by a library.

    Libraries that lack memory or threads end the process themselves: by `exit`, SIGSEGV, SIGABRT, or SIGINT (OpenBLAS).
    The parent forwards signals.
    """
    if limit_bytes() is None:
        yield
        return
    global has_parent
    reader, writer = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until the handlers of the parent are installed
    parent, child = os.getpid(), os.fork()
    if child:
        os.close(writer)
        if any(name in os.environ for name in RANK_VARIABLES):  # otherwise a killed launcher would leave ranks running
            die_with_parent()
        _watch(child, reader, command, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    has_parent = True
    os.setpgid(0, 0)  # the parent forwards the signals of a terminal
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    try:
        yield
    except (MemoryError, KeyboardInterrupt):
        os._exit(1)  # the parent has the memory to report the error
    except BaseException:
        os.write(writer, b".")
        raise
    os.write(writer, b".")


def _watch(child: int, reader: int, command: str, mask: set[int]) -> NoReturn:
    from dithc.core.logging import get_logger, user_error

    log, received = get_logger(f"dithc.{command}"), set[int]()

    def forward(number: int, _: FrameType | None) -> None:
        received.add(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # SIG_IGN as under nohup
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(reader, False)
    is_reported = False
    with suppress(BlockingIOError):
        is_reported = bool(os.read(reader, 1))
    if is_reported or code in (0, *STATUSES) or -code in (signal.SIGKILL, *FORWARDED):
        os._exit(code if code >= 0 else 128 - code)
    if signal.SIGINT in received:
        log.error("interrupted")
        os._exit(128 + signal.SIGINT)
    ending = f"status {code}" if code >= 0 else signal.Signals(-code).name
    error = user_error(
        f"dithc {command}: out of memory",
        got=f"a limit of {format_bytes(limit_bytes() or 0)} on the memory of a process (`ulimit -v`, `ulimit -d`); "
        f"a library ended the process ({ending})",
        expected="more memory",
        fix=RAISE_LIMIT,
    )
    log.error(str(error))
    os._exit(2)
