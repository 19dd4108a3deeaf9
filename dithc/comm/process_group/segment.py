"""Memory shared by ranks of a node, with a barrier before reads."""

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
    """Shared bytes of the ranks, initially zero.

    Attributes:
        memory: uint8 tensor of the requested size.
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
        """Create and map the memory; collective over the ranks.

        Args:
            num_bytes: size of `memory`.
            names: names of all ranks, for messages.
            broadcast: function that returns the value of the first rank on every rank.
            barrier: function that returns when all ranks have called it.
            timeout_seconds: time after which a rank stops waiting for another.

        Raises:
            OSError: the memory is not available.
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
        barrier()  # all ranks are attached: from here on, the end of a process is detected

    def meet(self, calls: Any) -> None:
        """Wait through `calls` until all ranks have written.

        `calls` is the library or a recorder of its calls.
        """
        calls.hc_exchange_meet(self._handle, self._timeout, self._gone)

    def absent(self) -> str | None:
        """Return the rank that was missing at the timeout; None if all arrived."""
        return None if self._gone.value < 0 else self._names[self._gone.value]
