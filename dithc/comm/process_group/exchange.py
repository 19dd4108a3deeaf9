"""Sums over the ranks of a node through memory that they share: the Python side of the kernels' exchange."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dithc import native
from dithc.comm.process_group.service import Operation
from dithc.log import UserError, logger, problem

log = logger(__name__)

# Bytes that this process has put into shared memory for others.
bytes_put = 0

Combination = Literal["sum", "product", "max", "min"]
COMBINATIONS: dict[Combination, int] = {"sum": 0, "product": 1, "max": 2, "min": 3}
TYPES = {torch.float32: 0, torch.bfloat16: 1}
DONE, PROCESS_GONE = 0, -8
MOST_RANKS = 256
CACHE_LINE = 64

# A chunk fits a second-level cache beside what is computed there, and is long enough that the handful of calls it takes, some
# microseconds each, do not show. With 4 of them the ranks may be 3 chunks apart before one waits.
SLOT_BYTES = 512 << 10
NUM_SLOTS = 4


# Rounds over the steps in one call of `whole`: about a millisecond, after which other operations get a turn.
ROUNDS_A_CALL = 64
Whole = Literal["all_reduce", "reduce_scatter", "all_gather"]
WHOLES: dict[Whole, int] = {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2}


class RankGone(UserError):
    """A process that was waited for does not exist any more, or does not go on."""

    status = 1  # not of a mistake in what was given

    def __init__(self, said: str) -> None:
        told = problem(
            "a rank is lost",
            got=said,
            expected="all ranks until the work is done",
            fix="see what the log says of that rank (a signal, memory), then start again: what is complete is kept",
        )
        super().__init__(str(told))
        self._said = said

    def __reduce__(self) -> tuple[type["RankGone"], tuple[str]]:
        return RankGone, (self._said,)  # else words would be put around those that it has


class _Pieces(ctypes.Structure):
    """hc_pieces."""

    _fields_ = [("offsets", ctypes.c_void_p), ("length", ctypes.c_int64), ("limit", ctypes.c_int64)]


class _Whole(ctypes.Structure):
    """hc_whole."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("x", "out", "done")],
        *[(name, ctypes.c_int64) for name in ("count", "chunk")],
        ("first", ctypes.c_uint32),
        *[(name, ctypes.c_int) for name in ("kind", "x_type", "type", "op")],
        ("scale", ctypes.c_float),
    ]


class Pieces:
    """Where the pieces of a chunk lie in an array: that of rank r at offsets[r], `length` elements or up to `limit`."""

    def __init__(self, offsets: Sequence[int], length: int, *, limit: int = 1 << 62) -> None:
        self.offsets, self.length, self.limit = offsets, length, limit
        self._array = (ctypes.c_int64 * len(offsets))(*offsets)
        self._struct = _Pieces(ctypes.addressof(self._array), length, limit)
        self.address = ctypes.addressof(self._struct)

    def count(self, rank: int) -> int:
        """Elements of the piece of a rank."""
        return max(0, min(self.length, self.limit - self.offsets[rank]))


class Exchange:
    """The segment that the ranks of a node share. All of them must do the same steps in the same order.

    Every step returns whether it was done; False means that another rank is not there yet: try again.
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
        """Makes the segment and maps it; collective over the ranks of the node.

        Args:
            rank: of this process among those of the node.
            names: of the node's ranks, for messages.
            broadcast: gives every rank the value of rank 0.
            barrier: returns when all ranks have called it.
            slot_bytes: of a chunk.

        Raises:
            OSError: there is no room for the segment.
        """
        handle = native.library()
        assert handle is not None, "an exchange needs the C kernels"
        self._library, self._names, ranks = handle, list(names), len(names)
        self.rank, self.ranks, self._slot_bytes = rank, ranks, slot_bytes
        size = ctypes.c_int64()
        handle.hc_exchange_bytes(ranks, NUM_SLOTS, slot_bytes, ctypes.byref(size))
        self._memory = shared_memory(size.value, rank=rank, broadcast=broadcast, barrier=barrier)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        attached = ctypes.c_void_p()
        handle.hc_exchange_attach(
            self._address, native.context(num_threads=1), rank, ranks, NUM_SLOTS, slot_bytes, ctypes.byref(attached)
        )
        self._handle = attached.value
        self._number = 0
        self._gone = ctypes.c_int()
        barrier()  # everybody is attached: a process that ends from here on is noticed

    def piece_elements(self, dtype: torch.dtype) -> int:
        """The most elements of a piece of the wire type `dtype`."""
        return self._slot_bytes // self.ranks // CACHE_LINE * CACHE_LINE // dtype.itemsize

    def cut(self, count: int, dtype: torch.dtype) -> Pieces:
        """A chunk of so many elements in a row, cut into a piece for each rank."""
        line = CACHE_LINE // dtype.itemsize
        length = -(-count // self.ranks // line) * line
        return Pieces([min(rank * length, count) for rank in range(self.ranks)], length, limit=count)

    def reserve(self, chunks: int) -> int:
        """Numbers for the next chunks; returns the first."""
        first = self._number
        self._number = (first + chunks) % (1 << 32)
        return first

    def whole(
        self, kind: Whole, x: Tensor, out: Tensor, *, wire: torch.dtype, op: Combination = "sum", scale: float = 1.0
    ) -> Operation:
        """A whole operation of the ranks of this node.

        Args:
            kind: of all_reduce, x and out are the same, which becomes its combination times scale; of reduce_scatter, out becomes
                the combination of part r of x; of all_gather, out becomes x of every rank, and x may lie at its place there.
            x: dense, of one dimension.
            out: likewise, of the same type.
            wire: type in which numbers go through the segment.
        """
        part = min(x.numel(), out.numel())
        chunk = self.piece_elements(wire) * (self.ranks if kind == "all_reduce" else 1)
        chunks, done = -(-part // chunk), (ctypes.c_int64 * 3)()
        what = _Whole(
            *(x.data_ptr(), out.data_ptr(), ctypes.addressof(done), part, chunk, self.reserve(chunks)),
            *(WHOLES[kind], TYPES[x.dtype], TYPES[wire], COMBINATIONS[op], scale),
        )
        address, patience, before = ctypes.addressof(what), 0, 0
        while not self._is_done(
            self._library.hc_exchange_whole(self._handle, address, ROUNDS_A_CALL, patience, ctypes.byref(self._gone))
        ):
            progress = sum(done)
            patience = yield progress > before
            before = progress
        self._count(part * (self.ranks - 1 if kind == "reduce_scatter" else 1), wire)
        return None

    def put(self, number: int, pieces: Pieces, x: Tensor, *, wire: torch.dtype, patience: int) -> bool:
        """Copies the pieces of the other ranks into the segment, as type `wire`."""
        status = self._library.hc_exchange_put(
            *(self._handle, number % (1 << 32), pieces.address, x.data_ptr(), TYPES[x.dtype], TYPES[wire], patience),
            ctypes.byref(self._gone),
        )
        if not self._is_done(status):
            return False
        self._count(sum(map(pieces.count, range(self.ranks))) - pieces.count(self.rank), wire)
        return True

    def offer(self, number: int, pieces: Pieces, x: Tensor, *, patience: int) -> bool:
        """Copies x, the piece of this rank, into the segment, for `get` of the others."""
        status = self._library.hc_exchange_offer(
            *(self._handle, number % (1 << 32), pieces.address),
            *(x.data_ptr(), TYPES[x.dtype], TYPES[x.dtype], patience, ctypes.byref(self._gone)),
        )
        if not self._is_done(status):
            return False
        self._count(pieces.count(self.rank), x.dtype)
        return True

    def combine(
        self,
        number: int,
        pieces: Pieces,
        x: Tensor,
        *,
        wire: torch.dtype,
        op: Combination,
        scale: float,
        out: Tensor | None,
        patience: int,
        keep: bool = True,
    ) -> Tensor | None:
        """Combines the piece of this rank over all ranks, its own values straight from x.

        Args:
            out: takes the result too; of the type of x, or of `wire` without `keep`. It may be where the piece lies in x.
            keep: whether the result is for the others, who `get` it after `publish`; else the chunk ends here.

        Returns:
            The result: the shared memory itself with `keep`, else `out`; None: try again.
        """
        pointer = ctypes.c_void_p()
        status = self._library.hc_exchange_combine(
            *(self._handle, number % (1 << 32), pieces.address, x.data_ptr(), TYPES[x.dtype]),
            *(TYPES[wire], COMBINATIONS[op], scale),
            *(None if out is None else out.data_ptr(), TYPES[x.dtype if out is None else out.dtype]),
            *(ctypes.byref(pointer) if keep else None, patience, ctypes.byref(self._gone)),
        )
        if not self._is_done(status):
            return None
        count = pieces.count(self.rank)
        if not keep:
            assert out is not None, "a result that nobody keeps"
            return out
        self._count(count, wire)
        offset = (pointer.value or 0) - self._address
        return self._bytes[offset : offset + count * wire.itemsize].view(wire)

    def publish(self, number: int) -> None:
        """Tells the others that the piece of this rank is complete."""
        self._library.hc_exchange_publish(self._handle, number % (1 << 32))

    def get(
        self, number: int, pieces: Pieces, out: Tensor, *, wire: torch.dtype, with_own: bool, patience: int
    ) -> bool:
        """Copies the pieces of the others, and that of this rank where asked for, to their places in `out`."""
        status = self._library.hc_exchange_get(
            *(self._handle, number % (1 << 32), pieces.address, TYPES[wire], with_own),
            *(out.data_ptr(), TYPES[out.dtype], patience, ctypes.byref(self._gone)),
        )
        return self._is_done(status)

    def fold(self, parts: Sequence[Tensor], op: Combination, out: Tensor) -> None:
        """out, which may be one of them, becomes the combination of the parts, in their order, in fp32; all of one type."""
        rows = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
        self._library.hc_exchange_fold(
            self._handle, len(parts), out.numel(), rows, TYPES[out.dtype], COMBINATIONS[op], out.data_ptr()
        )

    @staticmethod
    def _count(elements: int, dtype: torch.dtype) -> None:
        global bytes_put
        bytes_put += elements * dtype.itemsize

    def _is_done(self, status: int) -> bool:
        if status == PROCESS_GONE:
            raise RankGone(f"{self._names[self._gone.value]} has ended")
        return bool(status == DONE)


def shared_memory(size: int, *, rank: int, broadcast: Callable[[Any], Any], barrier: Callable[[], None]) -> mmap.mmap:
    """Maps `size` bytes of zeros that all ranks share; the file behind it has no name any more when this returns."""
    path, failure = None, None
    if rank == 0:
        try:
            path = _file_of(size)
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


def _file_of(size: int) -> str:
    """A new file of `size` bytes that are there, so that no later store can fail; in /dev/shm where it has room."""
    failure: OSError | None = None
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if not Path(folder).is_dir():
            continue
        file, path = tempfile.mkstemp(prefix="dithc-", dir=folder)
        try:
            os.posix_fallocate(file, 0, size)
            if failure is not None:
                log.warning("shared memory of the ranks: %s; it is in %s instead", failure, folder)
            return path
        except OSError as error:
            os.unlink(path)
            failure = error
        finally:
            os.close(file)
    raise failure or OSError("no folder for shared memory")
