"""Memory shared by the ranks of a node, and concatenation of tensors in it."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dithc.core.logging import UserError, user_error
from dithc.engine import native
from dithc.engine.comm import Group

WAIT_SECONDS = 1800.0
PAGE_BYTES = 4096
CAUSE_PREFIX = "a process that was waited for "  # the text of the kernels' error before the cause
LOST_STATUS = 1  # not an input error
GROWTH = 2  # minimum growth factor of a segment that is too small


class SharedBuffers:
    """Shared memory for tensors of any size. Outgrown memory is kept, because recorded calls hold its address."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._segments: list[Any] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor at the start of the memory. All ranks request the same tensors in the same order."""
        num_bytes = math.prod(shape) * dtype.itemsize
        capacity = self._segments[-1].memory.numel() if self._segments else 0
        if not self._segments or num_bytes > capacity:
            pages = -(-max(num_bytes, GROWTH * capacity) // PAGE_BYTES)
            segment = Group.segment(pages * PAGE_BYTES, over=self._group, timeout_seconds=WAIT_SECONDS)
            self._segments.append(segment)
        memory: Tensor = self._segments[-1].memory[:num_bytes]
        return memory.view(dtype).view(tuple(shape))

    def barrier(self, calls: Any) -> None:
        """Record in `calls` a wait until all ranks have written the latest tensor."""
        self._segments[-1].barrier(calls)

    def lost_rank(self) -> str | None:
        return next((rank for segment in self._segments if (rank := segment.lost_rank()) is not None), None)


class SharedGather:
    """Concatenation of tensors in memory shared by the ranks of a node, without messages.

    Two buffers alternate: a rank writes to one after all have met at the other, so all have read it.
    """

    def __init__(self, group: Any) -> None:
        self._buffers = deque([SharedBuffers(group), SharedBuffers(group)])

    def __call__(self, part: Tensor, lengths: Sequence[int], *, rank: int, dim: int) -> Tensor:
        """Return the concatenation of all parts along `dim`; UserError if a rank is missing.

        `lengths` are the sizes of all parts along `dim`, in the order of `rank`; other sizes are equal.
        """
        shape = (*part.shape[:dim], sum(lengths), *part.shape[dim + 1 :])
        buffers = self._buffers[0]
        self._buffers.rotate()
        whole = buffers.allocate(shape, part.dtype)
        whole.narrow(dim, sum(lengths[:rank]), lengths[rank]).copy_(part)
        try:
            buffers.barrier(native.library())
        except ValueError as error:
            if (lost := buffers.lost_rank()) is None:
                raise
            raise lost_rank_error(error, lost) from error
        return whole.clone()


def lost_rank_error(error: ValueError, rank: str) -> UserError:
    lost = user_error(
        f"{rank} is lost while ranks generate an image together",
        got=f"{rank} {str(error).rpartition(CAUSE_PREFIX)[2]}",
        expected="all ranks that share an image, until it is complete",
        fix="find the cause in the log of that rank (a signal, memory), then restart: finished shards are kept",
    )
    lost.status = LOST_STATUS
    return lost
