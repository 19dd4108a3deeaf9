"""Attention over tokens that are partitioned among the ranks of a node, through shared memory.

N rows of a batch, t tokens of this rank, T tokens of an image, D width, H heads.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dithc.engine.cftp import partition
from dithc.engine.hcops.blocks import sharded_ops
from dithc.sample.parallel.rank_set import RankSet
from dithc.sample.parallel.shared_buffers import SharedBuffers

LINE = 64  # columns per cache line, which no two ranks share


class SharedMemoryAttention:
    """Shared-memory attention of the ranks of a node, bitwise equal to one rank.

    Two buffers alternate: a rank at block b + 1 has met all others there, so block b has been read before block b + 2 is
    written. Two more hold shared results of the condition. A pass begins with the first ones.
    """

    def __init__(self, ranks: RankSet, lengths: Sequence[int]) -> None:
        self._ranks, self._lengths = ranks, list(lengths)
        self._first, self._tokens = sum(lengths[: ranks.rank]), sum(lengths)
        self.most_tokens = max(lengths)
        self._keys = SharedBuffers(ranks.group), SharedBuffers(ranks.group)
        self._outputs = SharedBuffers(ranks.group), SharedBuffers(ranks.group)
        self.turn = (0, 0)
        self._kept: Any = None

    def begin(self) -> None:
        self.turn = (0, 0)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        n, _, width = qkv.shape
        key_index, output_index = self.turn
        keys = self._keys[key_index]
        self.turn = (1 - key_index, output_index)
        memory = keys.allocate((n, self._tokens, 2 * width // 3), qkv.dtype)
        mixed, *self._kept = sharded_ops.attention_in(memory, qkv, num_heads, first=self._first, barrier=keys.barrier)
        return mixed

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        key_index, output_index = self.turn
        outputs = self._outputs[output_index]
        self.turn = (key_index, 1 - output_index)
        width = len(layers[0][0])
        columns = partition(width, self._ranks.size, multiple=LINE)[self._ranks.rank]
        memory = outputs.allocate((len(layers), len(x), width), dtype)
        sharded_ops.linears_in(memory, x, layers, columns=columns, barrier=outputs.barrier)
        return iter(memory)

    def lost_rank(self) -> str | None:
        memories = *self._keys, *self._outputs
        return next((rank for memory in memories if (rank := memory.lost_rank()) is not None), None)
