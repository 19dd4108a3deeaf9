"""Memory that ranks of one node share, and tensors that they put together there."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dithc import native
from dithc.comm import Group
from dithc.log import problem

MEETING_SECONDS = 1800.0
PAGE_BYTES = 4096


class Shared:
    """Memory for tensors of any size; where it was too small for one it stays, as others are still there."""

    def __init__(self, group: Any) -> None:
        """Takes a group of torch.distributed, of ranks of one node."""
        self._group = group
        self._segments: list[Any] = []

    def of(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor at the start of it; all ranks ask for the same ones, in the same order."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if not self._segments or num_bytes > self._segments[-1].memory.numel():
            whole = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
            self._segments.append(Group.segment(whole, over=self._group, timeout_seconds=MEETING_SECONDS))
        memory: Tensor = self._segments[-1].memory[:num_bytes]
        return memory.view(dtype).view(tuple(shape))

    def meet(self, calls: Any) -> None:
        """Has `calls` wait until all ranks have written there what they have for the tensor that was asked for last."""
        self._segments[-1].meet(calls)

    def absent(self) -> str | None:
        """The rank that was waited for in vain; None where all came."""
        return next((rank for segment in self._segments if (rank := segment.absent()) is not None), None)


class Joining:
    """Parts of tensors that ranks of one node put where all read them; no message is sent.

    Two memories take turns: who writes to one again has met all others at the other one, so everybody has read it.
    """

    def __init__(self, group: Any) -> None:
        """Takes a group of torch.distributed, of ranks of one node."""
        self._memories = deque([Shared(group), Shared(group)])

    def __call__(self, part: Tensor, lengths: Sequence[int], *, rank: int, dim: int) -> Tensor:
        """The parts of all, one after the other along `dim`.

        Args:
            part: of this rank.
            lengths: of the part of each rank along `dim`; the other sizes are the same for all.
            rank: the place of this rank among them.
            dim: along which they follow each other.

        Raises:
            UserError: a rank did not come.
        """
        memory = self._memories[0]
        self._memories.rotate()
        whole = memory.of((*part.shape[:dim], sum(lengths), *part.shape[dim + 1 :]), part.dtype)
        whole.narrow(dim, sum(lengths[:rank]), lengths[rank]).copy_(part)
        try:
            memory.meet(native.library())
        except ValueError as error:
            raise explained(error, memory.absent()) from error
        return whole.clone()


def explained(error: ValueError, absent: str | None) -> Exception:
    """The error of a meeting, where somebody was absent; else the error itself."""
    if absent is None:
        return error
    return problem(
        "ranks that share an image",
        got=f"{absent} has ended, is stopped, or has not come: {error}",
        expected="all of them wherever they meet",
        remedy="look at the log of that rank, then start again: finished shards are kept",
    )
