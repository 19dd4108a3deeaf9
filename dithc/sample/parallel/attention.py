"""Attention over tokens that are partitioned among ranks: through shared memory, or by messages.

N rows of a batch, t tokens of this rank, T tokens of an image, D width, H heads, U ranks of Ulysses.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dithc.engine import hcops
from dithc.engine.cftp import partition
from dithc.engine.hcops import token_shard
from dithc.engine.hcops.blocks import sharded_ops
from dithc.sample.parallel.rank_set import RankSet
from dithc.sample.parallel.shared_buffers import SharedBuffers

LINE = 64  # columns per cache line, which no two ranks share


class UnsharedAttention:
    """Defaults of `token_shard.ShardedAttention` for attention without memory shared by ranks."""

    in_sequence = False
    most_tokens = 0
    turn: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        """See `token_shard.ShardedAttention`."""

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        return sharded_ops.linears_apart(x, layers, dtype)

    def lost_rank(self) -> str | None:
        """Return None: message timeouts are reported at their waits."""
        return None


class SharedMemoryAttention:
    """Shared-memory attention of the ranks of a node, bitwise equal to one rank.

    Two buffers alternate: a rank at block b + 1 has met all others there, so block b has been read before block b + 2 is
    written. Two more hold shared results of the condition. A pass begins with the first ones.
    """

    in_sequence = True

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


class UlyssesAttention(UnsharedAttention):
    """Attention by messages (Ulysses, arXiv 2309.14509), bitwise equal to one rank: all tokens for H / U heads per rank."""

    def __init__(self, ranks: RankSet, lengths: Sequence[int]) -> None:
        self._ranks, self._lengths = ranks, list(lengths)
        self.most_tokens = max(lengths)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        lengths, ranks = self._lengths, self._ranks
        n, local, width = qkv.shape
        by_heads = qkv.view(n, local, 3, ranks.size, -1)  # heads of rank u: (..., u, D / U)
        sent = [part.contiguous() for part in by_heads.unbind(3)]
        received = ranks.all_to_all(sent, [(n, length, 3, width // 3 // ranks.size) for length in lengths])
        whole = torch.cat(received, dim=1).flatten(2)  # (N, T, 3 D / U)
        with token_shard.part_of(sum(lengths)):
            mixed = hcops.attention(whole, num_heads // ranks.size)
        parts = [part.contiguous() for part in torch.split(mixed, lengths, dim=1)]
        heads_of_ranks = ranks.all_to_all(parts, [(n, local, mixed.shape[2])] * ranks.size)
        return torch.cat(heads_of_ranks, dim=2)  # (N, t, D)
