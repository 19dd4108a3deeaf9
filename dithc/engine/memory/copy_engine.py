"""Background copies of tensors between tiers: a load and an offload stream (paper section 4.2, Algorithm 1).

Submission never blocks. While a caller waits for a copy, the otherwise idle compute team helps.
"""

import ctypes
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from errno import ECANCELED
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from dithc.core.logging import get_logger, user_error
from dithc.engine import native
from dithc.engine.hardware import discover_machine
from dithc.engine.native import signatures

log = get_logger(__name__)

Stream = Literal["load", "offload"]
STREAMS: tuple[Stream, ...] = ("load", "offload")  # numbers of hc_copy_stream
PENDING = -1  # HC_COPY_PENDING
TIMED_OUT = signatures.TIMED_OUT
NO_FILE = -1, 0
PAGE_BYTES = 4096  # direct access to a file requires multiples of it
NANOSECONDS = 1_000_000_000
# Interval at which a wait checks for Ctrl-C.
POLL_NANOSECONDS = NANOSECONDS // 10
# A part of a copy is 4 MB; only a disk that does not respond takes longer than this.
CLOSE_NANOSECONDS = 10 * NANOSECONDS
# Tensors of unfinished copies, to which the system may still write.
_leaked: list[object] = []


class MappedTier(Protocol):
    """Tier interface required by copies."""

    def mapping(self) -> "FileMapping | None":
        """Return the mapping of a file; None for memory."""


class FileMapping(NamedTuple):
    """Mapped file; `direct` is a descriptor that bypasses the page cache, None if impossible."""

    address: int
    num_bytes: int
    descriptor: int
    direct: int | None = None


class CopyHandle:
    """A submitted copy, for `CopyEngine.is_done` and `CopyEngine.wait`."""

    __slots__ = ("__weakref__", "_state", "num_bytes", "stream")

    def __init__(self, num_bytes: int, stream: Stream) -> None:
        self.num_bytes = num_bytes
        self.stream = stream
        self._state = ctypes.c_int(PENDING)


@dataclass(frozen=True, kw_only=True)
class CopyCounters:
    """Sums since the creation of the engine."""

    loaded_bytes: int
    offloaded_bytes: int
    blocking_bytes: int  # copied by the compute team: `now`, and help by waiting callers
    queued_bytes: int  # of copies that have not begun
    stall_seconds: float  # time of callers in `wait`, `drain` and `now`
    busy_seconds: dict[Stream, float]
    failed: int  # failed or canceled copies


class CopyEngine:
    """Copy engine with two streams, usable from any thread; raises RuntimeError after `close` and in a forked child."""

    def __init__(
        self,
        tiers: Iterable[MappedTier] | None = None,
        *,
        load_core: int | None = None,
        offload_core: int | None = None,
    ) -> None:
        """Start a C thread per stream.

        Args:
            tiers: tiers that may be files, copied by pread and pwrite; None for no files.
            load_core, offload_core: core (index into `Machine.cores`) for each stream's thread; None for any.

        Raises:
            UserError: the C library or the core does not exist, or the system rejects the threads.
        """
        mappings = (tier.mapping() for tier in tiers or ())
        self._files = tuple(mapping for mapping in mappings if mapping is not None)
        self._engine = _Engine(cores=(load_core, offload_core))
        # also runs before the interpreter exits and frees the memory
        self._finalizer = weakref.finalize(self, self._engine.close)

    def submit(self, target: Tensor, source: Tensor, *, stream: Stream) -> CopyHandle:
        """Queue a copy between contiguous CPU tensors of one dtype and size, and return immediately.

        Both tensors are kept until `retire`, `wait` or `drain`.

        Raises:
            ValueError: the tensors do not match.
            RuntimeError: the engine is closed, or belongs to another process.
        """
        request = self._request(target, source)
        ticket = CopyHandle(target.nbytes, stream)
        self._engine.kept[ticket] = (target, source)
        try:
            self._engine.call("submit", ctypes.byref(request), STREAMS.index(stream), 0, ctypes.byref(ticket._state))
        except BaseException:
            self._engine.kept.pop(ticket, None)
            raise
        return ticket

    def is_done(self, ticket: CopyHandle) -> bool:
        """Return whether a copy has completed or failed."""
        return self._engine.state(ticket) != PENDING

    def wait(self, ticket: CopyHandle) -> None:
        """Wait for a copy, with top priority and help of the compute team.

        Raises:
            OSError: the copy failed, with its errno (ENOSPC, EIO, ...); the target is undefined.
            RuntimeError: the engine was closed first, or belongs to another process.
        """
        while self._engine.state(ticket) == PENDING:
            self._engine.call("wait", native.context(), ctypes.byref(ticket._state), POLL_NANOSECONDS)
        self._engine.kept.pop(ticket, None)
        _raise(self._engine.state(ticket), f"{ticket.stream} of {ticket.num_bytes} bytes")

    def now(self, target: Tensor, source: Tensor) -> None:
        """Copy immediately with the compute team, ahead of the queue; raises like `submit` and `wait`."""
        request, error = self._request(target, source), ctypes.c_int()
        self._engine.call("now", native.context(), ctypes.byref(request), ctypes.byref(error))
        _raise(error.value, f"copy of {target.nbytes} bytes")

    def retire(self) -> None:
        """Drop the tensors of completed copies; failures are logged, and raised by `wait`."""
        for ticket in self._engine.kept.copy():
            error = self._engine.state(ticket)
            if error != PENDING and self._engine.kept.pop(ticket, None) is not None and error:
                log.warning("%s of %d bytes failed: %s", ticket.stream, ticket.num_bytes, os.strerror(error))

    def drain(self) -> None:
        """Wait for all copies and drop their tensors; failures are logged, and raised by `wait`."""
        while self._engine.call("wait", native.context(), None, POLL_NANOSECONDS) == TIMED_OUT:
            pass
        self.retire()

    def counters(self) -> CopyCounters:
        counters = signatures.CopyCounters()
        self._engine.call("counters", ctypes.byref(counters))
        return CopyCounters(
            loaded_bytes=counters.bytes[0],
            offloaded_bytes=counters.bytes[1],
            blocking_bytes=counters.team_bytes,
            queued_bytes=counters.queued_bytes,
            stall_seconds=counters.stall_nanoseconds / NANOSECONDS,
            busy_seconds={name: counters.busy_nanoseconds[i] / NANOSECONDS for i, name in enumerate(STREAMS)},
            failed=counters.failed,
        )

    def close(self) -> None:
        """End the threads after the current parts and cancel the queue. May be repeated."""
        self._finalizer()
        self.retire()

    def inject_faults(self, *, error: int = 0, after_bytes: int = 0, delay_seconds: float = 0.0) -> None:
        """Inject faults for tests: each part of a copy (up to 4 MB) sleeps, and fails with `error` after `after_bytes`."""
        self._engine.call("set_faults", error, after_bytes, int(delay_seconds * NANOSECONDS))

    def _request(self, target: Tensor, source: Tensor) -> signatures.CopyRequest:
        _check(target, source)
        dst, src, num_bytes = target.data_ptr(), source.data_ptr(), target.nbytes
        is_aligned = (dst | src | num_bytes) % PAGE_BYTES == 0
        target_file, target_offset = self._find_file(dst, is_aligned=is_aligned)
        source_file, source_offset = self._find_file(src, is_aligned=is_aligned)
        return signatures.CopyRequest(num_bytes, src, dst, source_file, target_file, source_offset, target_offset)

    def _find_file(self, address: int, *, is_aligned: bool) -> tuple[int, int]:
        """Return descriptor and offset of the file mapping that contains an address; direct access for pages."""
        for start, num_bytes, descriptor, direct in self._files:
            if start <= address < start + num_bytes:
                return descriptor if direct is None or not is_aligned else direct, address - start
        return NO_FILE


class _Engine:
    """An hc_copies handle and the tensors in use, freed with the last reference."""

    def __init__(self, *, cores: tuple[int | None, int | None]) -> None:
        self.kept: dict[CopyHandle, tuple[Tensor, Tensor]] = {}
        self._process = os.getpid()
        self._is_closed = self._has_ended = False
        self._library: Any = native.library()
        if self._library is None:
            raise user_error(
                "copies between memory tiers", got=f"no C kernels: {native.load_library().reason}", expected="the C library",
                fix="reinstall the package, or train without memory tiers",
            )  # fmt: skip
        self._handle = self._start(_cpus(cores))

    def call(self, name: str, *arguments: Any) -> int:
        """Return the status of hc_copies_<name>; RuntimeError if the engine is closed."""
        self._check_process()
        if self._is_closed and name != "counters":
            raise RuntimeError("copies between memory tiers: closed")
        status: int = getattr(self._library, f"hc_copies_{name}")(self._handle, *arguments)
        return status

    def state(self, ticket: CopyHandle) -> int:
        """Return PENDING, 0 (target is valid) or an errno."""
        self._check_process()
        state: int = self._library.hc_copies_state(ctypes.byref(ticket._state))
        return state

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "copies between memory tiers: this process was forked from the owner of the copy threads"
            )

    def close(self) -> None:
        """End the threads; if the disk blocks them, their memory is leaked."""
        self._is_closed = True
        if os.getpid() == self._process:
            self._has_ended = self._library.hc_copies_close(self._handle, CLOSE_NANOSECONDS) != TIMED_OUT
            if not self._has_ended:
                _leaked.append(self.kept)
                log.warning(
                    "copies: part of a copy still active after %d s, abandoning its thread",
                    CLOSE_NANOSECONDS // NANOSECONDS,
                )

    def __del__(self) -> None:
        if getattr(self, "_has_ended", False):
            self._library.hc_copies_destroy(self._handle)

    def _start(self, cpus: tuple[int, int]) -> ctypes.c_void_p:
        """Start the threads on CPUs (-1: any), or on any CPU if the system rejects these."""
        for pair in dict.fromkeys((cpus, (-1, -1))):
            handle, numbers = ctypes.c_void_p(), (ctypes.c_int * 2)(*pair)
            try:
                self._library.hc_copies_create(native.context(), True, numbers, ctypes.byref(handle))
            except ValueError as error:
                log.warning("copies: no threads on CPUs %s: %s", pair, error)
            else:
                log.info("copies: one thread each for %s, on CPUs %s (-1: any)", " and ".join(STREAMS), pair)
                return handle
        raise user_error(
            "copies between memory tiers", got="no threads, see the warnings", expected="two threads for copies",
            fix="raise the limit of processes (ulimit -u), or train without memory tiers",
        )  # fmt: skip


def _cpus(cores: tuple[int | None, int | None]) -> tuple[int, int]:
    """Return the first usable CPU of each core; -1 without a core."""
    machine = discover_machine()
    allowed = set(machine.limits.allowed_cpus)
    cpus = []
    for name, index in zip(STREAMS, cores, strict=True):
        usable = [cpu for core in machine.cores if core.index == index for cpu in core.cpus if cpu in allowed]
        if index is not None and not usable:
            raise user_error(
                f"core of the {name} thread", got=index, expected="a core that this process may use",
                fix="use a core from `dithc.engine.hardware.core_plan`",
            )  # fmt: skip
        cpus.append(usable[0] if usable else -1)
    return cpus[0], cpus[1]


def _check(target: Tensor, source: Tensor) -> None:
    if target.dtype != source.dtype or target.numel() != source.numel():
        raise ValueError(
            f"copy: {tuple(target.shape)} of {target.dtype} from {tuple(source.shape)} of {source.dtype}; "
            "expected equally many elements of one dtype"
        )
    if not (target.is_contiguous() and source.is_contiguous() and target.is_cpu and source.is_cpu):
        raise ValueError("copy: both tensors must be contiguous and on the CPU")
    if abs(target.data_ptr() - source.data_ptr()) < target.nbytes:
        raise ValueError("copy: the two tensors overlap")


def _raise(error: int, operation: str) -> None:
    if error == ECANCELED:
        raise RuntimeError(f"{operation}: the copy engine was closed first")
    if error:
        raise OSError(error, f"{operation}: {os.strerror(error)}")
