"""Memory shared by ranks of a node, with a barrier before reads."""

import ctypes
import weakref
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dithc.comm.process_group.exchange import CACHE_LINE, attached

NANOSECONDS = 1_000_000_000


class Segment:
    """Shared bytes of the ranks, initially zero.

    Attributes:
        memory: uint8 tensor of the requested size.
    """

    def __init__(self, num_bytes: int, *, over: Any, timeout_seconds: float) -> None:
        """Create and map the memory; collective over the ranks of `over`, a group of torch.distributed on one node.

        Raises:
            OSError: the memory is not available.
        """

        def broadcast(value: Any) -> Any:
            box = [value]
            dist.broadcast_object_list(box, group_src=0, group=over)
            return box[0]

        self._names = [f"rank {member}" for member in dist.get_process_group_ranks(over)]
        self._timeout = int(timeout_seconds * NANOSECONDS)
        library, everything, handle = attached(
            dist.get_rank(over),
            len(self._names),
            slots=(1, CACHE_LINE),
            more_bytes=num_bytes,
            broadcast=broadcast,
            barrier=partial(dist.barrier, group=over),
        )
        self.memory: Tensor = everything[everything.numel() - num_bytes :]
        self._handle, self._gone = handle.value, ctypes.c_int(-1)
        weakref.finalize(self, library.hc_exchange_detach, handle).atexit = False

    def meet(self, calls: Any) -> None:
        """Wait through `calls`, the library or a recorder of its calls, until all ranks have written."""
        calls.hc_exchange_meet(self._handle, self._timeout, self._gone)

    def absent(self) -> str | None:
        """Return the rank that was missing at the timeout; None if all arrived."""
        return None if self._gone.value < 0 else self._names[self._gone.value]
