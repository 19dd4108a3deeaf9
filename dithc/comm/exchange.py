"""Sums over the ranks of a node through memory that they share: the Python side of the kernels' exchange."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dithc import native
from dithc.log import logger

log = logger(__name__)

# Bytes that this process has put into shared memory for others.
bytes_put = 0

Combination = Literal["sum", "product", "max", "min"]
COMBINATIONS: dict[Combination, int] = {"sum": 0, "product": 1, "max": 2, "min": 3}
TYPES = {torch.float32: 0, torch.bfloat16: 1}
DONE, PROCESS_GONE = 0, -8
MOST_RANKS = 256

# A chunk fits a second-level cache beside what is computed there, and is long enough that the handful of calls it takes, some
# microseconds each, do not show. With 4 of them the ranks may be 3 chunks apart before one waits.
SLOT_BYTES = 512 << 10
NUM_SLOTS = 4


class RankGone(RuntimeError):
    """A process that was waited for does not exist any more."""


@dataclass(frozen=True)
class Part:
    """The part of a chunk that this rank combines: elements start..start + count; `values` is the shared memory itself."""

    start: int
    count: int
    values: Tensor


class Exchange:
    """The segment that the ranks of a node share. All of them must do the same steps in the same order.

    Every step returns whether it was done; False means that another rank is not there yet: try again.
    """

    def __init__(
        self, *, rank: int, names: Sequence[str], broadcast: Callable[[Any], Any], barrier: Callable[[], None]
    ) -> None:
        """Makes the segment and maps it; collective over the ranks of the node.

        Args:
            rank: of this process among those of the node.
            names: of the node's ranks, for messages.
            broadcast: gives every rank the value of rank 0.
            barrier: returns when all ranks have called it.

        Raises:
            OSError: there is no room for the segment.
        """
        handle = native.library()
        assert handle is not None, "an exchange needs the C kernels"
        self._library, self._names, ranks = handle, list(names), len(names)
        size = ctypes.c_int64()
        handle.hc_exchange_bytes(ranks, NUM_SLOTS, SLOT_BYTES, ctypes.byref(size))
        self._memory = _shared_memory(size.value, rank=rank, broadcast=broadcast, barrier=barrier)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        attached = ctypes.c_void_p()
        handle.hc_exchange_attach(
            self._address, native.context(num_threads=1), rank, ranks, NUM_SLOTS, SLOT_BYTES, ctypes.byref(attached)
        )
        self._handle = attached.value
        self._number = 0
        self._gone = ctypes.c_int()
        barrier()  # everybody is attached: a process that ends from here on is noticed

    def chunk_elements(self, dtype: torch.dtype) -> int:
        """Elements of a chunk on the wire type `dtype`."""
        return SLOT_BYTES // dtype.itemsize

    def reserve(self, chunks: int) -> int:
        """Numbers for the next chunks; returns the first."""
        first = self._number
        self._number = (first + chunks) % (1 << 32)
        return first

    def put(self, number: int, x: Tensor, *, wire: torch.dtype, patience: int) -> bool:
        """Copies this rank's chunk into the segment, as type `wire`."""
        global bytes_put
        status = self._library.hc_exchange_put(
            *(self._handle, number % (1 << 32), x.numel(), x.data_ptr(), TYPES[x.dtype], TYPES[wire], 1.0, patience),
            ctypes.byref(self._gone),
        )
        if status == DONE:
            bytes_put += x.numel() * wire.itemsize
        return self._is_done(status)

    def combine(
        self, number: int, count: int, *, wire: torch.dtype, op: Combination, scale: float, patience: int
    ) -> Part | None:
        """Combines this rank's part of the chunk over all ranks."""
        pointer, start, size = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        status = self._library.hc_exchange_combine(
            *(self._handle, number % (1 << 32), count, TYPES[wire], COMBINATIONS[op], scale, patience),
            *(ctypes.byref(value) for value in (pointer, start, size, self._gone)),
        )
        if not self._is_done(status):
            return None
        offset = (pointer.value or 0) - self._address
        bytes_of_part = size.value * wire.itemsize
        return Part(start.value, size.value, self._bytes[offset : offset + bytes_of_part].view(wire))

    def publish(self, number: int) -> None:
        """Tells the others that this rank's part is complete."""
        self._library.hc_exchange_publish(self._handle, number % (1 << 32))

    def get(self, number: int, out: Tensor, *, wire: torch.dtype, patience: int) -> bool:
        """Copies the combined chunk into `out`."""
        status = self._library.hc_exchange_get(
            *(self._handle, number % (1 << 32), out.numel(), TYPES[wire], out.data_ptr(), TYPES[out.dtype], patience),
            ctypes.byref(self._gone),
        )
        return self._is_done(status)

    def _is_done(self, status: int) -> bool:
        if status == PROCESS_GONE:
            raise RankGone(f"{self._names[self._gone.value]} has ended")
        return bool(status == DONE)


def _shared_memory(size: int, *, rank: int, broadcast: Callable[[Any], Any], barrier: Callable[[], None]) -> mmap.mmap:
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
