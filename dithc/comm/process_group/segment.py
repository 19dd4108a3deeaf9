"""Memory that some ranks of a node share, and where they meet before they read in it."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dithc import native
from dithc.comm.process_group.exchange import CACHE_LINE, shared_memory

NANOSECONDS = 1_000_000_000


class Segment:
    """Bytes that all of them see, filled with zeros at first.

    Attributes:
        memory: uint8, of as many bytes as were asked for.
    """

    def __init__(
        self,
        num_bytes: int,
        *,
        rank: int,
        names: Sequence[str],
        broadcast: Callable[[Any], Any],
        barrier: Callable[[], None],
        timeout_seconds: float,
    ) -> None:
        """Makes the memory and maps it; collective over them.

        Args:
            num_bytes: of `memory`.
            rank: of this process among them.
            names: of all, for messages.
            broadcast: gives every rank the value of the first.
            barrier: returns when all have called it.
            timeout_seconds: after which who waits for another gives up.

        Raises:
            OSError: there is no room for the memory.
        """
        handle = native.library()
        assert handle is not None, "a segment needs the C kernels"
        self._names, self._timeout = list(names), int(timeout_seconds * NANOSECONDS)
        size = ctypes.c_int64()
        handle.hc_exchange_bytes(len(names), 1, CACHE_LINE, ctypes.byref(size))
        self._mapped = shared_memory(size.value + num_bytes, rank=rank, broadcast=broadcast, barrier=barrier)
        everything = torch.frombuffer(self._mapped, dtype=torch.uint8)
        self.memory: Tensor = everything[size.value :]
        attached = ctypes.c_void_p()
        handle.hc_exchange_attach(
            *(everything.data_ptr(), native.context(num_threads=1), rank, len(names), 1, CACHE_LINE),
            ctypes.byref(attached),
        )
        self._handle, self._gone = attached.value, ctypes.c_int(-1)
        weakref.finalize(self, handle.hc_exchange_detach, attached).atexit = False
        barrier()  # everybody is attached: a process that ends from here on is noticed

    def meet(self, calls: Any) -> None:
        """Has `calls`, the library or what records calls of it, wait until all ranks are here: what they wrote can be read."""
        calls.hc_exchange_meet(self._handle, self._timeout, self._gone)

    def absent(self) -> str | None:
        """Who was waited for in vain; None where all came."""
        return None if self._gone.value < 0 else self._names[self._gone.value]
