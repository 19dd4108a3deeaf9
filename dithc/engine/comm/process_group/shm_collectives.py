"""Reductions over the ranks of a node through shared memory: Python side of the kernels' exchange."""

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from dithc.core.logging import UserError, get_logger, user_error
from dithc.engine import native
from dithc.engine.comm.process_group.progress_thread import Operation

log = get_logger(__name__)

# Bytes that this process has written to shared memory for other ranks.
bytes_put = 0

Combination = Literal["sum", "product", "max", "min"]
COMBINATIONS: dict[Combination, int] = {"sum": 0, "product": 1, "max": 2, "min": 3}
TYPES = {torch.float32: 0, torch.bfloat16: 1}
DONE, PROCESS_GONE = 0, -8
MAX_RANKS = 256
CACHE_LINE = 64
NANOSECONDS = 1_000_000_000

# A chunk fits into the second-level cache together with the working set of the computation. It is long enough to hide
# the latency of its handful of calls, some microseconds each. With 4 slots the ranks may be 3 chunks apart before one
# waits.
SLOT_BYTES = 512 << 10
NUM_SLOTS = 4


# Rounds over the steps in one call of `whole`: about a millisecond, after which other operations can run.
ROUNDS_PER_CALL = 64
CollectiveKind = Literal["all_reduce", "reduce_scatter", "all_gather"]
COLLECTIVES: dict[CollectiveKind, int] = {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2}


def rank_gone(description: str) -> UserError:
    """Return the error for a rank process that has ended or hangs while other ranks wait for it."""
    error = user_error(
        "a rank is lost",
        got=description,
        expected="all ranks until the work is done",
        fix="find the cause in the log of that rank (a signal, memory), then restart: completed work is kept",
    )
    error.status = 1  # not an input error
    return error


class _Pieces(ctypes.Structure):
    _fields_ = [("offsets", ctypes.c_void_p), ("length", ctypes.c_int64), ("limit", ctypes.c_int64)]


class _CollectiveArguments(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("x", "out", "done")],
        *[(name, ctypes.c_int64) for name in ("count", "chunk")],
        ("first", ctypes.c_uint32),
        *[(name, ctypes.c_int) for name in ("kind", "x_type", "type", "op")],
        ("scale", ctypes.c_float),
    ]


class ChunkLayout:
    """Positions of the pieces of a chunk in an array.

    The piece of rank r starts at offsets[r] and has `length` elements, or fewer up to `limit`.
    """

    def __init__(self, offsets: Sequence[int], length: int, *, limit: int = 1 << 62) -> None:
        self.offsets, self.length, self.limit = offsets, length, limit
        self._array = (ctypes.c_int64 * len(offsets))(*offsets)
        self._struct = _Pieces(ctypes.addressof(self._array), length, limit)
        self.address = ctypes.addressof(self._struct)

    def count(self, rank: int) -> int:
        return max(0, min(self.length, self.limit - self.offsets[rank]))


class ShmCollectives:
    """Shared segment of the ranks of a node. All ranks must execute the same steps in the same order.

    Every step returns whether it completed; False means that another rank is not ready, and the step must be retried.
    """

    def __init__(
        self,
        *,
        rank: int,
        names: Sequence[str],
        broadcast: Callable[[Any], Any],
        barrier: Callable[[], None],
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        """Create and map the segment; collective over the ranks of the node, which `names` names in messages.

        `broadcast` returns rank 0's value on every rank, `barrier` returns when all have called it. OSError without memory.
        """
        self._names, self.rank, self.ranks, self._slot_bytes = list(names), rank, len(names), slot_bytes
        self._library, self._bytes, handle = attach(
            rank, self.ranks, slots=(NUM_SLOTS, slot_bytes), broadcast=broadcast, barrier=barrier
        )
        self._handle, self._number, self._lost = handle.value, 0, ctypes.c_int()

    def piece_elements(self, dtype: torch.dtype) -> int:
        """Return the maximum number of elements of a piece in the wire type."""
        return self._slot_bytes // self.ranks // CACHE_LINE * CACHE_LINE // dtype.itemsize

    def cut(self, count: int, dtype: torch.dtype) -> ChunkLayout:
        """Partition a chunk of consecutive elements into one piece per rank."""
        line = CACHE_LINE // dtype.itemsize
        length = -(-count // self.ranks // line) * line
        return ChunkLayout([min(rank * length, count) for rank in range(self.ranks)], length, limit=count)

    def reserve(self, chunks: int) -> int:
        """Reserve numbers for the next chunks; return the first."""
        first = self._number
        self._number = (first + chunks) % (1 << 32)
        return first

    def whole(
        self,
        kind: CollectiveKind,
        x: Tensor,
        out: Tensor,
        *,
        wire: torch.dtype,
        op: Combination = "sum",
        scale: float = 1.0,
    ) -> Operation:
        """Run a complete operation over the ranks of this node, on dense 1D tensors of one data type, moved as `wire`.

        all_reduce: x and out are the same tensor and receive the reduction times scale. reduce_scatter: out receives the
        reduction of part r of x. all_gather: out receives x of every rank, and x may be its own part of out.
        """
        part = min(x.numel(), out.numel())
        chunk = self.piece_elements(wire) * (self.ranks if kind == "all_reduce" else 1)
        chunks, counters = -(-part // chunk), (ctypes.c_int64 * 3)()
        operation = _CollectiveArguments(
            *(x.data_ptr(), out.data_ptr(), ctypes.addressof(counters), part, chunk, self.reserve(chunks)),
            *(COLLECTIVES[kind], TYPES[x.dtype], TYPES[wire], COMBINATIONS[op], scale),
        )
        address, wait_ns, last_progress = ctypes.addressof(operation), 0, 0
        while not self._is_done(
            self._library.hc_exchange_collective(
                self._handle, address, ROUNDS_PER_CALL, wait_ns, ctypes.byref(self._lost)
            )
        ):
            progress = sum(counters)
            wait_ns = yield progress > last_progress
            last_progress = progress
        self._count(part * (self.ranks - 1 if kind == "reduce_scatter" else 1), wire)
        return None

    def put(self, number: int, pieces: ChunkLayout, x: Tensor, *, wire: torch.dtype, wait_ns: int) -> bool:
        """Copy the pieces of the other ranks into the segment, as type `wire`."""
        is_complete = self._step(self._library.hc_exchange_put, number, pieces, *_typed(x), TYPES[wire], wait_ns)
        if is_complete:
            self._count(sum(map(pieces.count, range(self.ranks))) - pieces.count(self.rank), wire)
        return is_complete

    def offer(self, number: int, pieces: ChunkLayout, x: Tensor, *, wait_ns: int) -> bool:
        """Copy x, the piece of this rank, into the segment, for `get` on the other ranks."""
        is_complete = self._step(self._library.hc_exchange_offer, number, pieces, *_typed(x), TYPES[x.dtype], wait_ns)
        if is_complete:
            self._count(pieces.count(self.rank), x.dtype)
        return is_complete

    def combine(
        self,
        number: int,
        pieces: ChunkLayout,
        x: Tensor,
        *,
        wire: torch.dtype,
        op: Combination,
        scale: float,
        out: Tensor | None,
        wait_ns: int,
    ) -> Tensor | None:
        """Reduce the piece of this rank over all ranks; its own values are read directly from x. None: retry.

        Without `out`, return the result in shared memory, which other ranks `get` after `publish`. Otherwise the chunk
        ends here with the result in `out`, of type `wire`, which may be the piece in x.
        """
        pointer = ctypes.c_void_p()
        target = (None, TYPES[x.dtype], ctypes.byref(pointer)) if out is None else (*_typed(out), None)
        reduction = TYPES[wire], COMBINATIONS[op], scale
        if not self._step(self._library.hc_exchange_combine, number, pieces, *_typed(x), *reduction, *target, wait_ns):
            return None
        if out is not None:
            return out
        count = pieces.count(self.rank)
        self._count(count, wire)
        offset = (pointer.value or 0) - self._bytes.data_ptr()
        return self._bytes[offset : offset + count * wire.itemsize].view(wire)

    def publish(self, number: int) -> None:
        self._library.hc_exchange_publish(self._handle, number % (1 << 32))

    def get(self, number: int, pieces: ChunkLayout, out: Tensor, *, wire: torch.dtype, wait_ns: int) -> bool:
        """Copy the pieces of all ranks to their positions in `out`."""
        return self._step(self._library.hc_exchange_get, number, pieces, TYPES[wire], True, *_typed(out), wait_ns)

    def fold(self, parts: Sequence[Tensor], op: Combination, out: Tensor) -> None:
        """Reduce parts of one data type in their order, in fp32, into `out`, which may be one of the parts."""
        rows = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
        self._library.hc_exchange_fold(
            self._handle, len(parts), out.numel(), rows, TYPES[out.dtype], COMBINATIONS[op], out.data_ptr()
        )

    def _step(self, function: Any, number: int, pieces: ChunkLayout, *arguments: Any) -> bool:
        """Call a step of the kernels on a chunk; return whether it completed."""
        chunk = self._handle, number % (1 << 32), pieces.address
        return self._is_done(function(*chunk, *arguments, ctypes.byref(self._lost)))

    @staticmethod
    def _count(elements: int, dtype: torch.dtype) -> None:
        global bytes_put
        bytes_put += elements * dtype.itemsize

    def _is_done(self, status: int) -> bool:
        if status == PROCESS_GONE:
            raise rank_gone(f"{self._names[self._lost.value]} has ended")
        return bool(status == DONE)


def _typed(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), TYPES[x.dtype]


class SharedSegment:
    """Shared bytes of the ranks, initially zero; `memory` is a uint8 tensor of the requested size."""

    def __init__(self, num_bytes: int, *, over: Any, timeout_seconds: float) -> None:
        """Create and map the memory; collective over a group of torch.distributed on one node. OSError without memory."""

        def broadcast(value: Any) -> Any:
            values = [value]
            dist.broadcast_object_list(values, group_src=0, group=over)
            return values[0]

        self._names = [f"rank {member}" for member in dist.get_process_group_ranks(over)]
        self._timeout = int(timeout_seconds * NANOSECONDS)
        library, segment, handle = attach(
            dist.get_rank(over),
            len(self._names),
            slots=(1, CACHE_LINE),
            more_bytes=num_bytes,
            broadcast=broadcast,
            barrier=partial(dist.barrier, group=over),
        )
        self.memory: Tensor = segment[segment.numel() - num_bytes :]
        self._handle, self._lost = handle.value, ctypes.c_int(-1)
        weakref.finalize(self, library.hc_exchange_detach, handle).atexit = False

    def barrier(self, calls: Any) -> None:
        """Wait through `calls`, the library or a recorder of its calls, until all ranks have written."""
        calls.hc_exchange_barrier(self._handle, self._timeout, self._lost)

    def lost_rank(self) -> str | None:
        """Return the rank that was missing at the timeout; None if all arrived."""
        return None if self._lost.value < 0 else self._names[self._lost.value]


def attach(
    rank: int,
    ranks: int,
    *,
    slots: tuple[int, int],
    more_bytes: int = 0,
    broadcast: Callable[[Any], Any],
    barrier: Callable[[], None],
) -> tuple[Any, Tensor, ctypes.c_void_p]:
    """Create the kernels' exchange of the ranks of a node, with `more_bytes` zero bytes at its end; collective.

    `slots` are number and bytes of the slots of a rank. Returns the library, all bytes (uint8), and the exchange.
    """
    library, size, handle = native.library(), ctypes.c_int64(), ctypes.c_void_p()
    assert library is not None, "an exchange needs the C kernels"
    library.hc_exchange_bytes(ranks, *slots, ctypes.byref(size))
    memory = shared_memory(size.value + more_bytes, rank=rank, broadcast=broadcast, barrier=barrier)
    segment = torch.frombuffer(memory, dtype=torch.uint8)
    context = native.context(num_threads=1)
    library.hc_exchange_attach(segment.data_ptr(), context, rank, ranks, *slots, ctypes.byref(handle))
    barrier()  # all ranks are attached: from here on, the end of a process is detected
    return library, segment, handle


def shared_memory(size: int, *, rank: int, broadcast: Callable[[Any], Any], barrier: Callable[[], None]) -> mmap.mmap:
    """Map `size` zero bytes shared by all ranks, in a file without a name after the call."""
    path, failure = None, None
    if rank == 0:
        try:
            path = _create_file(size)
        except OSError as error:
            failure = str(error)
    path, failure = broadcast((path, failure))
    if path is None:
        raise OSError(failure)
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), size)
    barrier()
    if rank == 0:
        os.unlink(path)
    return memory


def _create_file(size: int) -> str:
    """Create a file of `size` allocated bytes, so that no later store fails; in /dev/shm if possible."""
    failure: OSError | None = None
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if not Path(folder).is_dir():
            continue
        file, path = tempfile.mkstemp(prefix="dithc-", dir=folder)
        try:
            os.posix_fallocate(file, 0, size)
            if failure is not None:
                log.warning("shared memory of the ranks: %s; using %s instead", failure, folder)
            return path
        except OSError as error:
            os.unlink(path)
            failure = error
        finally:
            os.close(file)
    raise failure or OSError("no folder for shared memory")
