"""Caches across sampling steps: block outputs of one call replace the blocks in other calls.

Each row depends on its own tokens only, so batch and rank layout do not change any bit (except with ring, which rounds
differently). Cached values stay on their rank: per row two token streams (first-block), or order + 1 (taylor).

N rows of a batch; t tokens of this rank, T of an image, D width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import user_error
from dithc.sample.parallel.rank_set import RankSet, cut


class BlockStack(Protocol):
    """Consecutive blocks, (tokens (N, t, D), condition (N, D)) -> tokens (N, t, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> "BlockStack": ...

    def __call__(self, tokens: Tensor, c: Tensor, /) -> Tensor: ...


class BlockCache:
    """Blocks of a network in one sampling run; create a new instance for each run.

    `counters` (4) fp64: row-block evaluations; their number without a cache (both counted by the first rank of those that
    share tokens); seconds in blocks; seconds in the cache.
    """

    def __init__(self, tokens: RankSet, *, num_tokens: int) -> None:
        """Initialize for the ranks that share the tokens of an image, and T tokens."""
        self.counters = torch.zeros(4, dtype=torch.float64)
        self._ranks, self._lengths = tokens, cut(num_tokens, tokens.size)
        self._rows: int | None = None

    def __call__(self, blocks: BlockStack, tokens: Tensor, c: Tensor, time: float) -> Tensor:
        """Return the output (N, t, D) of all blocks, computed or cached, for tokens (N, t, D) and condition (N, D).

        Raises UserError if rows differ from the previous call, or (taylor) the timestep equals the previous one.
        """
        if self._rows not in (None, len(tokens)):
            raise user_error(
                "rows per network call in a sampling run with a cache",
                got=f"{len(tokens)}, {self._rows} before",
                expected="the same rows in every call: each row is compared with its previous values",
                fix="remove the cache, or the setting that changes the rows (`guidance_interval`, the sampler)",
            )
        self._rows, start, blocks_before = len(tokens), perf_counter(), float(self.counters[2])
        out = self._compute(blocks, tokens, c, time)
        if self._ranks.rank == 0:
            self.counters[1] += len(tokens) * len(blocks)
        self.counters[3] += perf_counter() - start - (float(self.counters[2]) - blocks_before)
        return out

    def _compute(self, blocks: BlockStack, tokens: Tensor, c: Tensor, time: float) -> Tensor:
        raise NotImplementedError

    def _run(self, blocks: BlockStack, tokens: Tensor, c: Tensor) -> Tensor:
        start = perf_counter()
        tokens = blocks(tokens, c)
        self.counters[2] += perf_counter() - start
        if self._ranks.rank == 0:
            self.counters[0] += len(tokens) * len(blocks)
        return tokens


class FirstBlockCache(BlockCache):
    """Cache that compares the first block's output (`FirstBlockCacheConfig`). Rows with a change run together."""

    def __init__(self, settings: evaluations.FirstBlockCacheConfig, tokens: RankSet, *, num_tokens: int) -> None:
        super().__init__(tokens, num_tokens=num_tokens)
        self._threshold = settings.threshold
        # (N, t, D) each: additions of the first block, and of the other blocks
        self._added = self._rest = torch.empty(0)

    def _compute(self, blocks: BlockStack, tokens: Tensor, c: Tensor, time: float) -> Tensor:
        first = self._run(blocks[:1], tokens, c)
        added = (first - tokens).float()
        changed = self._changed_rows(added)
        if len(changed) == len(tokens):
            out = self._run(blocks[1:], first, c)
            self._added, self._rest = added, (out - first).float()
            return out
        out = (first + self._rest).to(first.dtype)
        if changed:
            rows = torch.tensor(changed)
            hidden = self._run(blocks[1:], first[rows], c[rows])
            self._added[rows], self._rest[rows] = added[rows], (hidden - first[rows]).float()
            out[rows] = hidden
        return out

    def _changed_rows(self, added: Tensor) -> list[int]:
        """Return the rows with a changed first-block addition (N, t, D) since the last full run; the same on all ranks.

        Ranks exchange one sum per token, and `fsum` adds them exactly, so that the token layout has no effect.
        """
        if len(self._added) == 0:
            return list(range(len(added)))
        token_sums = [part.abs().sum(dim=2) for part in (added - self._added, self._added)]  # (N, t) each
        sums = self._ranks.all_gather(torch.stack(token_sums, dim=2), self._lengths, dim=1)  # (N, T, 2)
        change, before = ([math.fsum(row) for row in part.tolist()] for part in sums.unbind(2))
        return [row for row in range(len(added)) if not change[row] < self._threshold * before[row]]


@dataclass(frozen=True)
class _Node:
    """Sum of all blocks' additions (N, t, D) at a call, and its timestep."""

    call: int
    time: float
    added: Tensor


class TaylorCache(BlockCache):
    """Cache that extrapolates the output over timesteps; see `config.evaluations.TaylorCacheConfig`.

    Polynomials through close points extrapolate badly. Warm-up calls are therefore kept one interval apart, plus the
    newest.
    """

    def __init__(self, settings: evaluations.TaylorCacheConfig, tokens: RankSet, *, num_tokens: int) -> None:
        super().__init__(tokens, num_tokens=num_tokens)
        self._settings, self._calls = settings, 0
        self._nodes: list[_Node] = []  # newest first

    def _compute(self, blocks: BlockStack, tokens: Tensor, c: Tensor, time: float) -> Tensor:
        call, settings = self._calls, self._settings
        self._calls += 1
        if call >= settings.warmup_steps and (call - settings.warmup_steps + 1) % settings.interval:
            weights = lagrange([node.time for node in self._nodes], time)
            added = self._nodes[0].added * weights[0]
            for node, weight in zip(self._nodes[1:], weights[1:], strict=True):
                added += node.added * weight
            return (tokens + added).to(tokens.dtype)
        out = self._run(blocks, tokens, c)
        if settings.interval > 1:
            self._keep(_Node(call, time, (out - tokens).float()))
        return out

    def _keep(self, node: _Node) -> None:
        if self._nodes and self._nodes[0].time == node.time:
            raise user_error(
                "timesteps of a sampling run with a taylor cache",
                got=f"{node.time:g} twice",
                expected="a different timestep in each call, for the extrapolation",
                fix="use a sampler with one evaluation per step, or the cache first-block",
            )
        older = self._nodes
        if len(older) > 1 and older[0].call - older[1].call < self._settings.interval:
            older = older[1:]
        self._nodes = [node, *older][: self._settings.order + 1]


def lagrange(nodes: Sequence[float], x: float) -> list[float]:
    """Return the weights of values at distinct nodes for their polynomial at `x`."""
    return [
        math.prod((x - other) / (node - other) for j, other in enumerate(nodes) if j != i)
        for i, node in enumerate(nodes)
    ]


CACHES: dict[str, Callable[..., BlockCache]] = {"first-block": FirstBlockCache, "taylor": TaylorCache}  # by `kind`
