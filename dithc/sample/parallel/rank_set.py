"""Ranks that share parts of an image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from dithc.engine.cftp import partition
from dithc.sample.parallel.shared_buffers import SharedGather

T = TypeVar("T")


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

    def all_to_all(self, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Exchange parts between all ranks; return the dense parts for this rank, in rank order."""
        received = [parts[0].new_empty(list(shape)) for shape in shapes]
        distributed.all_to_all(received, list(parts), group=self.group)
        return received

    def _start(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], *, result: T
    ) -> Callable[[], T]:
        """Begin to send and receive tensors, each to or from a rank; return a function that waits for all."""
        works = [distributed.isend(x, group=self.group, group_dst=rank) for x, rank in sends]
        works += [distributed.irecv(x, group=self.group, group_src=rank) for x, rank in receives]

        def wait() -> T:
            for work in works:
                assert work is not None
                work.wait()
            return result

        return wait

    def exchange_edges(self, first: Tensor, last: Tensor) -> Callable[[], tuple[Tensor | None, Tensor | None]]:
        """Begin to exchange edges, of equal shape, with the neighbors.

        Return a function that waits for the previous rank's last and the next rank's first edge (None without neighbor).
        """
        sends, receives = [], []
        received_edges: list[Tensor | None] = []
        for edge, other in ((first, self.rank - 1), (last, self.rank + 1)):
            received_edges.append(None)
            if 0 <= other < self.size:
                received_edges[-1] = buffer = torch.empty_like(edge, memory_format=torch.contiguous_format)
                sends.append((edge.contiguous(), other))
                receives.append((buffer, other))
        return self._start(sends, receives, result=(received_edges[0], received_edges[1]))

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
