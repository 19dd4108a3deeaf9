"""Ranks that share parts of an image."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from dithc.engine.cftp import partition
from dithc.sample.parallel.shared_buffers import SharedGather


@dataclass(frozen=True)
class RankSet:
    """Ordered subset of the ranks of a run; a single rank has no group."""

    rank: int = 0
    size: int = 1
    group: Any = None  # group of torch.distributed; None for a single rank, or for all ranks
    # concatenation in shared memory on one node; None for messages
    shared_gather: SharedGather | None = field(default=None, repr=False, compare=False)

    def all_gather(self, part: Tensor, lengths: Sequence[int], *, dim: int = 0) -> Tensor:
        """Return the concatenation of all parts along `dim`, of the sizes `lengths`, on every rank."""
        if self.size == 1:
            return part
        if self.shared_gather is not None:
            return self.shared_gather(part, lengths, rank=self.rank, dim=dim)
        shapes = [[*part.shape[:dim], length, *part.shape[dim + 1 :]] for length in lengths]
        parts = [part.new_empty(shape) for shape in shapes]
        distributed.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, dim=dim)

    def gather(self, part: Tensor, lengths: Sequence[int], *, dim: int = 0) -> Tensor | None:
        """Return `all_gather` on the first rank, whose part must not be empty; None elsewhere."""
        if self.size == 1:
            return part
        if self.rank > 0:
            if lengths[self.rank] > 0:
                distributed.send(part.contiguous(), group=self.group, group_dst=0)
            return None
        whole = part.new_empty([*part.shape[:dim], sum(lengths), *part.shape[dim + 1 :]])
        targets = torch.split(whole, list(lengths), dim=dim)
        targets[0].copy_(part)
        for rank, target in enumerate(targets[1:], start=1):
            if lengths[rank] > 0:
                buffer = target.contiguous()  # the place itself, or a copy
                distributed.recv(buffer, group=self.group, group_src=rank)
                if buffer is not target:
                    target.copy_(buffer)
        return whole

    def any(self, flag: bool) -> bool:
        """Return whether any rank's flag is set; the same on every rank."""
        return bool(self.all_reduce_(torch.tensor([float(flag)])).item())

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Sum over the ranks in place; bitwise equal on every rank."""
        if self.size > 1:
            distributed.all_reduce(x, group=self.group)
        return x


SINGLE = RankSet()


def cut(count: int, size: int) -> list[int]:
    """Return the lengths of `size` nearly equal parts of `count` items, longer first."""
    return [part.stop - part.start for part in partition(count, size)]
