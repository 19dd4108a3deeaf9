"""Attention over tokens that are partitioned among ranks: through shared memory, or by messages.

N rows of a batch, t tokens of this rank, T tokens of an image, D width, H heads, K head width; U and R ranks of Ulysses
and ring.
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


class UspAttention(UnsharedAttention):
    """Ulysses among U ranks with consecutive tokens, ring among R sets of ranks (USP, arXiv 2405.07719).

    With R = 1, each rank computes ordinary attention over all tokens for H / U heads, bitwise equal to one rank. In the
    ring, keys and values are transferred while earlier ones are used. Partial results are combined in fp32, which
    rounds differently.
    """

    def __init__(self, ulysses: RankSet, ring: RankSet, lengths: Sequence[int]) -> None:
        self._ulysses, self._ring = ulysses, ring
        self.most_tokens = max(lengths)
        self._sets = [list(lengths[first : first + ulysses.size]) for first in range(0, len(lengths), ulysses.size)]
        self._tokens = sum(lengths)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        lengths, position = self._sets[self._ring.rank], self._ulysses.rank
        n, _, width = qkv.shape
        if self._ulysses.size > 1:
            by_heads = qkv.view(n, lengths[position], 3, self._ulysses.size, -1)  # heads of rank u: (..., u, D / U)
            sent = [part.contiguous() for part in by_heads.unbind(3)]
            shapes = [(n, length, 3, width // 3 // self._ulysses.size) for length in lengths]
            received = self._ulysses.all_to_all(sent, shapes)
            whole = torch.cat(received, dim=1).flatten(2)  # (N, tokens of the set, 3 D / U)
        else:
            whole = qkv
        heads = num_heads // self._ulysses.size
        mixed = self._ring_attention(whole, heads) if self._ring.size > 1 else self._local_attention(whole, heads)
        if self._ulysses.size == 1:
            return mixed
        parts = [part.contiguous() for part in torch.split(mixed, lengths, dim=1)]
        heads_of_ranks = self._ulysses.all_to_all(parts, [(n, lengths[position], mixed.shape[2])] * self._ulysses.size)
        return torch.cat(heads_of_ranks, dim=2)  # (N, t, D)

    def _local_attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        with token_shard.part_of(self._tokens):
            return hcops.attention(qkv, num_heads)

    def _ring_attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        n, _, width = qkv.shape
        block = qkv[..., width // 3 :].contiguous()  # (N, S, 2 D / U): keys, then values
        out, best = torch.empty(0), torch.empty(0)
        for step in range(self._ring.size):
            source = (self._ring.rank - step - 1) % self._ring.size
            receive = None
            if step + 1 < self._ring.size:
                receive = self._ring.shift(block, (n, sum(self._sets[source]), block.shape[2]))
            key, value = block.chunk(2, dim=-1)
            mixed, lse = sharded_ops.attention_to(qkv, key, value, num_heads)
            mixed = mixed.view(*mixed.shape[:2], num_heads, -1)  # (N, t, H, K) fp32
            if step == 0:
                out, best = mixed, lse
            else:
                joint = torch.logaddexp(best, lse)  # (N, H, t)
                old, new = ((part - joint).exp().transpose(1, 2).unsqueeze(3) for part in (best, lse))
                out, best = out * old + mixed * new, joint
            if receive is not None:
                block = receive()
        return out.flatten(2).to(qkv.dtype)
