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
    joining: SharedGather | None = field(default=None, repr=False, compare=False)

    def joined(self, part: Tensor, lengths: Sequence[int], *, dim: int = 0) -> Tensor:
        """Return the concatenation of all parts along `dim`, of the sizes `lengths`, on every rank."""
        if self.size == 1:
            return part
        if self.joining is not None:
            return self.joining(part, lengths, rank=self.rank, dim=dim)
        shapes = [[*part.shape[:dim], length, *part.shape[dim + 1 :]] for length in lengths]
        parts = [part.new_empty(shape) for shape in shapes]
        distributed.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, dim=dim)

    def collected(self, part: Tensor, lengths: Sequence[int], *, dim: int = 0) -> Tensor | None:
        """Return `joined` on the first rank, whose part must not be empty; None elsewhere."""
        if self.size == 1:
            return part
        if self.rank > 0:
            if lengths[self.rank] > 0:
                distributed.send(part.contiguous(), group=self.group, group_dst=0)
            return None
        whole = part.new_empty([*part.shape[:dim], sum(lengths), *part.shape[dim + 1 :]])
        places = torch.split(whole, list(lengths), dim=dim)
        places[0].copy_(part)
        for rank, place in enumerate(places[1:], start=1):
            if lengths[rank] > 0:
                coming = place.contiguous()  # the place itself, or a copy
                distributed.recv(coming, group=self.group, group_src=rank)
                if coming is not place:
                    place.copy_(coming)
        return whole

    def swapped(self, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Exchange parts between all ranks; return the dense parts for this rank, in rank order."""
        got = [parts[0].new_empty(list(shape)) for shape in shapes]
        distributed.all_to_all(got, list(parts), group=self.group)
        return got

    def passed_on(self, block: Tensor, shape: Sequence[int]) -> Callable[[], Tensor]:
        """Begin to send a dense block to the next rank of the ring; return a function that waits for the previous."""
        got = block.new_empty(list(shape))
        following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return self._begun([(block, following)], [(got, before)], result=got)

    def sent(self, x: Tensor, *, to: int, tag: int) -> Callable[[], None]:
        """Begin to send a tensor to a rank; return a function that waits for completion."""
        return self._begun([(x.contiguous(), to)], [], tag=tag, result=None)

    def awaited(self, into: Tensor, *, source: int, tag: int) -> Callable[[], Tensor]:
        """Begin to receive a tensor with this tag; return a function that waits for it."""
        return self._begun([], [(into, source)], tag=tag, result=into)

    def _begun(
        self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]], *, tag: int = 0, result: T
    ) -> Callable[[], T]:
        """Begin to send and receive tensors, each to or from a rank; return a function that waits for all."""
        works = [distributed.isend(x, group=self.group, group_dst=rank, tag=tag) for x, rank in sent]
        works += [distributed.irecv(x, group=self.group, group_src=rank, tag=tag) for x, rank in received]

        def arrived() -> T:
            for work in works:
                assert work is not None
                work.wait()
            return result

        return arrived

    def spread(self, x: Tensor, *, source: int) -> Tensor:
        if self.size > 1:
            distributed.broadcast(x, group=self.group, group_src=source)
        return x

    def edges(self, first: Tensor, last: Tensor) -> Callable[[], tuple[Tensor | None, Tensor | None]]:
        """Begin to send this rank's edges, of equal shape, to its neighbors.

        Returns:
            A function that waits for the last edge of the previous rank and the first edge of the next rank (None
            without this neighbor).
        """
        sent, received = [], []
        both: list[Tensor | None] = []
        for edge, other in ((first, self.rank - 1), (last, self.rank + 1)):
            both.append(None)
            if 0 <= other < self.size:
                both[-1] = got = torch.empty_like(edge, memory_format=torch.contiguous_format)
                sent.append((edge.contiguous(), other))
                received.append((got, other))
        return self._begun(sent, received, result=(both[0], both[1]))

    def any(self, flag: bool) -> bool:
        """Return whether any rank's flag is set; the same on every rank."""
        return bool(self.sum_(torch.tensor([float(flag)])).item())

    def sum_(self, x: Tensor) -> Tensor:
        """Sum over the ranks in place; bitwise equal on every rank."""
        if self.size > 1:
            distributed.all_reduce(x, group=self.group)
        return x


def cut(count: int, size: int) -> list[int]:
    """Return the lengths of `size` nearly equal parts of `count` items, longer first."""
    return [part.stop - part.start for part in partition(count, size)]
