"""Measured communication: its time and bytes per step, and the traffic counted by the kernel and a layer of MPI."""

import os
import socket
import stat
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from dithc.core.logging import user_error

COUNT_VARIABLE = "DITHC_MPI_TRAFFIC_PREFIX"
SOURCE = Path(__file__).with_name("mpi_count.c")
# struct tcp_info of linux/tcp.h: the offset of the 64-bit tcpi_bytes_sent (Linux 4.19), and the state of a listener.
INFO_BYTES, BYTES_SENT, LISTENING = 256, 200, 10
COUNTERS = struct.Struct("=QQ")


@dataclass(frozen=True)
class Traffic:
    """Counts since the start of the process; None for a count that is not available."""

    tcp_bytes: int | None  # payload that the kernel has sent on this process's TCP connections (gloo and its store)
    mpi_calls: int | None  # of MPI functions that send, receive or wait
    mpi_bytes: int | None  # passed to these functions
    shared_bytes: int | None  # written to the shared memory of a node's ranks

    def since(self, before: "Traffic") -> "Traffic":
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Traffic(*(None if None in (end, start) else end - start for end, start in pairs))


def sent() -> Traffic:
    num_calls, num_bytes = None, None
    with suppress(KeyError, OSError, struct.error):  # no layer, or no call of MPI yet
        num_calls, num_bytes = COUNTERS.unpack(Path(f"{os.environ[COUNT_VARIABLE]}.{os.getpid()}").read_bytes())
    exchange = sys.modules.get("dithc.engine.comm.process_group.shm_collectives")
    return Traffic(_tcp(), num_calls, num_bytes, exchange.bytes_put if exchange else 0)


def build_counter(folder: Path) -> Path:
    """Build the profiling layer with the mpicc next to this Python; UserError if that fails.

    To use it, preload it and set DITHC_MPI_TRAFFIC_PREFIX to a prefix of file names.
    """
    compiler, library = Path(sys.executable).with_name("mpicc"), folder / "mpi_count.so"
    command = [str(compiler), "-shared", "-fPIC", "-O2", str(SOURCE), "-o", str(library)]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        reason = (completed.stderr.splitlines() or ["no message"])[-1] if completed.returncode else None
    except OSError as error:
        reason = str(error)
    if reason is not None:
        fix = "install an MPI with its compiler (`pip install 'dithc[mpi]'`, and a C compiler), or do not count MPI"
        raise user_error("profiling layer of MPI", got=reason, expected="mpicc next to this Python", fix=fix)
    return library


def _tcp() -> int | None:
    """Return the sum over all open connections; None if the kernel does not count."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        except OSError:  # closed after it was listed
            continue
        if info[0] == LISTENING:
            continue
        if len(info) < BYTES_SENT + 8:
            return None
        total += struct.unpack_from("=Q", info, BYTES_SENT)[0]
    return total


@dataclass(frozen=True)
class Exposure:
    """Cost of the communication of one step on this rank."""

    exposed_seconds: float = 0.0  # for which the computing thread waited
    comm_bytes: int = 0  # gradients and weights sent by this rank
    communication_seconds: float | None = (
        None  # with at least one active exchange; None if the backend does not measure
    )

    @property
    def overlap_fraction(self) -> float | None:
        """Share of communication time hidden by computation (0 to 1); None if unmeasured."""
        if not self.communication_seconds:
            return None
        return min(1.0, max(0.0, 1.0 - self.exposed_seconds / self.communication_seconds))

    def metrics(self) -> dict[str, float]:
        fields = vars(self) | {"overlap_fraction": self.overlap_fraction}
        return {name: value for name, value in fields.items() if value is not None}


class CommMeter:
    """Accumulator of communication costs between two calls of `take`."""

    def __init__(self) -> None:
        self._clear()

    @property
    def waited_seconds(self) -> float:
        """Seconds of waiting since the last `take`."""
        return self._exposed

    def sent(self, num_bytes: int) -> None:
        self._bytes += num_bytes

    def wait(self, work: Any) -> None:
        """Wait for an exchange; TimeoutError or RuntimeError if another rank is gone or late."""
        start = time.perf_counter()
        work.wait()
        self._exposed += time.perf_counter() - start
        self._spans.append((getattr(work, "begun", None), getattr(work, "ended", None)))

    def take(self) -> Exposure:
        exposure = Exposure(self._exposed, self._bytes, union_seconds(self._spans))
        self._clear()
        return exposure

    def _clear(self) -> None:
        self._exposed, self._bytes = 0.0, 0
        self._spans: list[tuple[float | None, float | None]] = []


def union_seconds(spans: list[tuple[float | None, float | None]]) -> float | None:
    """Return the length of the union of intervals; None without intervals or if an end is missing."""
    intervals = sorted((begun, ended) for begun, ended in spans if begun is not None and ended is not None)
    if not intervals or len(intervals) < len(spans):
        return None
    total, end = 0.0, float("-inf")
    for begun, ended in intervals:
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total
