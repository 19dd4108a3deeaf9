"""The members that share something of one image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Some ranks of a run, in an order; one rank alone needs no group.

    Attributes:
        rank: this process's number among them, from 0.
        size: how many they are.
        group: of torch.distributed; None for one alone, or for all ranks.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    def joined(self, part: Tensor, lengths: Sequence[int], *, dim: int = 0) -> Tensor:
        """The parts of all, one after the other along `dim`, on every rank.

        Args:
            part: of this rank; all are of one type, and of one shape but for `dim`.
            lengths: of the part of each rank along `dim`.
        """
        if self.size == 1:
            return part
        import torch.distributed as distributed

        shapes = [[*part.shape[:dim], length, *part.shape[dim + 1 :]] for length in lengths]
        parts = [part.new_empty(shape) for shape in shapes]
        distributed.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, dim=dim)

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place; the same bits on every rank."""
        if self.size > 1:
            import torch.distributed as distributed

            distributed.all_reduce(x, group=self.group)
        return x
