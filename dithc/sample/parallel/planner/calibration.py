"""Measured rates of the connected ranks: blocks, copies, barriers, messages. The slowest rank counts.

The measurement takes a few seconds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dithc.engine.comm import Group
from dithc.engine.hcops import token_shard
from dithc.engine.hcops.blocks import sharded_ops
from dithc.model import DiT
from dithc.sample.parallel.attention import SharedMemoryAttention, UnsharedAttention
from dithc.sample.parallel.degrees import SamplingWork
from dithc.sample.parallel.parallel_denoiser import ParallelDenoiser, rotary_of
from dithc.sample.parallel.planner.cost_model import NOMINAL, LinkModel, MachineRates
from dithc.sample.parallel.rank_set import RankSet, cut

MAX_TOKENS, PART, BLOCKS = 1024, 4, 2  # tokens of the long strip; divisor for the short strip; number of timed blocks
ROUNDS, WINDOW_SECONDS, LONG_SECONDS = 3, 0.05, 0.5
COPY_BYTES, SMALL_BYTES, LARGE_BYTES = 16 << 20, 4 << 10, 2 << 20
REPEATS, MATRIX = 9, 256
# A long strip takes at most this multiple of its tokens' time, also if one of the two measurements was disturbed.
MAX_FIXED = 20
MAX_NODES = 4  # nodes per measurement of messages between nodes


# Measurements that a single rank lacks: seconds, two links as (latency, seconds per byte), a share, seconds by active ranks.
UNMEASURED: dict[str, Any] = {"barrier_seconds": 0.0, "inside": None, "between": None, "hidden": 1.0, "crowded": {}}

# Timed work: a context manager that yields the action to repeat.
Timed = Callable[[], AbstractContextManager[Callable[[], object]]]


def measure_rates(
    model: DiT,
    group: Group,
    *,
    work: SamplingWork,
    bf16: bool,
    decode: Callable[[], float],
    nodes: Sequence[Sequence[int]],
) -> MachineRates:
    """Return the measured rates of the connected ranks; collective, equal on all.

    `model` is in evaluation mode, `nodes` the ranks of each node. `decode` decodes a part of an image and returns the
    number of parts per image.
    """
    group.barrier()
    rates: dict[str, Any] = UNMEASURED | block_seconds(model, work, bf16=bf16)
    if group.size > 1:
        rates["crowded"] = crowding_seconds(model, work, group, nodes=nodes, bf16=bf16)
    start = time.perf_counter()
    parts = decode()
    rates["decoding"] = parts * (time.perf_counter() - start)
    source, target = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.zeros(COPY_BYTES, dtype=torch.uint8)
    rates["copied"] = _median_seconds(lambda: target.copy_(source))
    if group.size > 1:
        rates |= _exchanges(group, nodes, work)
    return _combine(group.gather_objects(rates), work)


def _exchanges(group: Group, nodes: Sequence[Sequence[int]], work: SamplingWork) -> dict[str, Any]:
    """Measure a barrier, and messages within a node and between some nodes, with all ranks active."""
    measured: dict[str, Any] = {}
    for name, parts in (("inside", nodes), ("between", _node_sets(nodes))):
        process_group = group.split(parts)
        members = next((part for part in parts if group.rank in part), [group.rank])
        ranks = RankSet(members.index(group.rank), len(members), process_group)
        group.barrier()
        if ranks.size > 1:
            measured[name] = _link(ranks)
            measured["hidden"] = min(measured.get("hidden", 1.0), _overlap_share(ranks))
            if name == "inside" and work.in_memory:
                measured["barrier_seconds"] = _barrier_seconds(ranks, work)
    return measured


def _node_sets(nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the ranks with the same index on consecutive nodes, in sets of nodes."""
    if len(nodes) == 1:
        return []
    node_sets = [nodes[first : first + MAX_NODES] for first in range(0, len(nodes), MAX_NODES)]
    return [list(ranks) for node_set in node_sets for ranks in zip(*node_set, strict=False)]


def _link(ranks: RankSet) -> tuple[float, float]:
    """Return (seconds, seconds per byte) of the slower of two patterns: a ring step, and an all-to-all exchange."""

    def shift_block(size: int) -> None:
        block = torch.zeros(size, dtype=torch.uint8)
        ranks.shift(block, (size,))()

    def exchange_parts(size: int) -> None:
        part = size // ranks.size
        ranks.all_to_all([torch.zeros(part, dtype=torch.uint8)] * ranks.size, [(part,)] * ranks.size)

    latency = byte = 0.0
    for pattern, share in ((shift_block, 1.0), (exchange_parts, (ranks.size - 1) / ranks.size)):
        small = _median_seconds(partial(pattern, SMALL_BYTES))
        large = _median_seconds(partial(pattern, LARGE_BYTES))
        latency = max(latency, small)
        byte = max(byte, (large - small) / (LARGE_BYTES - SMALL_BYTES) / share)
    return latency, byte


def _overlap_share(ranks: RankSet) -> float:
    """Return the share of a message hidden behind computing."""
    x = torch.zeros(MATRIX, MATRIX)
    block = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
    message = _median_seconds(lambda: ranks.shift(block, (LARGE_BYTES,))())
    product = _median_seconds(lambda: x @ x)
    products = 1 + int(message / product)  # longer than the message

    def compute() -> None:
        for _ in range(products):
            x @ x

    def overlap() -> None:
        wait = ranks.shift(block, (LARGE_BYTES,))
        compute()
        wait()

    return min(1.0, max(0.0, 1 - (_median_seconds(overlap) - _median_seconds(compute)) / message))


def _barrier_seconds(ranks: RankSet, work: SamplingWork) -> float:
    """Return the seconds of a barrier: attention to one token per rank."""
    attention = SharedMemoryAttention(ranks, cut(ranks.size, ranks.size))
    qkv = torch.zeros(1, 1, 3 * work.width)
    return _median_seconds(lambda: attention.attention(qkv, work.heads))


def _median_seconds(action: Callable[[], Any]) -> float:
    action()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _combine(measured: Sequence[dict[str, Any]], work: SamplingWork) -> MachineRates:
    """Return rates from the slowest measurement of all ranks."""

    def slowest(name: str) -> float:
        return float(max(rank[name] for rank in measured))

    def link(name: str) -> LinkModel | None:
        links = [rank[name] for rank in measured if rank[name] is not None]
        if not links:
            return None
        byte = max(byte for _, byte in links)
        return LinkModel(latency=max(latency for latency, _ in links), bandwidth=1 / byte if byte > 0 else float("inf"))

    long, short = strips(work)
    token = (work.row_flops - work.uncut_flops) / work.tokens / work.depth  # FLOPs per token and block
    # Seconds for t tokens: fixed + slope t.
    slope = (slowest("long") - slowest("short")) / (long - short) if long > short else 0.0
    slope = min(max(slope, slowest("long") / long / MAX_FIXED), slowest("long") / long)
    fixed = slowest("long") - slope * long
    linear = work.linear_flops / (work.row_flops - work.uncut_flops)
    return MachineRates(
        flops=token / slope,
        half_tokens=fixed / slope / linear,
        inside=link("inside"),
        between=link("between"),
        copy_rate=COPY_BYTES / slowest("copied"),
        barrier_seconds=slowest("barrier_seconds") or NOMINAL.barrier_seconds,
        split_call_seconds=slowest("split_call_seconds"),
        hidden=min(rank["hidden"] for rank in measured),
        call=slowest("call"),
        decoding=slowest("decoding"),
        crowding=_crowding(measured),
        source=f"measured on {len(measured)} rank(s)",
    )


def _crowding(measured: Sequence[dict[str, Any]]) -> Sequence[tuple[int, float]]:
    """Return `MachineRates.crowding`; fewer active ranks are never slower, also if a measurement was disturbed."""
    counts = {ranks for rank in measured for ranks in rank["crowded"]}
    seconds = {ranks: max(rank["crowded"].get(ranks, 0.0) for rank in measured) for ranks in counts}
    crowding: list[tuple[int, float]] = []
    for ranks in sorted(seconds, reverse=True):
        share = seconds[ranks] / seconds[max(seconds)]
        crowding.insert(0, (ranks, min(share, crowding[0][1]) if crowding else 1.0))
    return crowding


def block_seconds(model: DiT, work: SamplingWork, *, bf16: bool) -> dict[str, float]:
    """Return seconds of blocks and calls by name.

    `long` and `short` are the seconds of a block with a long and a short strip of one image. `split_call_seconds`
    is the extra time of a block in two calls, and `call` the time of a network call outside of blocks.
    """
    long, short = strips(work)
    blocks = model.chain()[:BLOCKS]
    timed = {"long": _block(model, blocks, work, long), "short": _block(model, blocks, work, short)}
    if work.in_memory and short < long:
        timed["split"] = _block(model, blocks, work, short, in_sequence=False)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        times = dict(zip(timed, _median_of_rounds(list(timed.values())), strict=True))
    times = {name: seconds / min(BLOCKS, work.depth) for name, seconds in times.items()}
    times["split_call_seconds"] = max(0.0, times.pop("split", 0.0) - times["short"])
    return times | {"call": _call_seconds(model, work, times["long"], bf16=bf16)}


def crowding_seconds(
    model: DiT, work: SamplingWork, group: Group, *, nodes: Sequence[Sequence[int]], bf16: bool
) -> dict[int, float]:
    """Return seconds of a block by the number of active first ranks per node."""
    times, max_ranks = {}, max(len(ranks) for ranks in nodes)
    position = next(ranks.index(group.rank) for ranks in nodes if group.rank in ranks)
    block = _block(model, model.chain()[:BLOCKS], work, strips(work)[1])
    for ranks in sorted({min(1 << power, max_ranks) for power in range(max_ranks.bit_length() + 1)}):
        group.barrier()
        if position < ranks:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                (times[ranks],) = _median_of_rounds([block])
    return times


def strips(work: SamplingWork) -> tuple[int, int]:
    long = min(work.tokens, MAX_TOKENS)
    return long, max(1, long // PART)


def _block(
    model: DiT, blocks: Callable[[Tensor, Tensor], Tensor], work: SamplingWork, tokens: int, *, in_sequence: bool = True
) -> Timed:
    @contextmanager
    def prepare() -> Iterator[Callable[[], object]]:
        with token_shard.part_of(work.tokens, attention), rotary_of(model, slice(0, tokens)):
            yield partial(blocks, strip, c)

    width = model.config.hidden_size
    strip, c = torch.zeros(1, tokens, width), torch.zeros(1, width)
    attention = _CompleteKeys(work.tokens, in_sequence=in_sequence) if work.in_memory else None
    return prepare


def _call_seconds(model: DiT, work: SamplingWork, block: float, *, bf16: bool) -> float:
    """Return seconds of a call outside of blocks; 0 if a call takes too long to measure."""
    if work.tokens > MAX_TOKENS or work.depth * block > LONG_SECONDS:
        return 0.0
    config = model.config
    x, y = torch.zeros(1, config.in_channels, *config.size), torch.zeros(1, dtype=torch.long)
    denoiser = ParallelDenoiser(model, bf16=bf16)
    (whole,) = _median_of_rounds([lambda: nullcontext(lambda: denoiser(x, torch.zeros(1), y))])
    return max(0.0, whole - work.depth * block)


def _median_of_rounds(timed: Sequence[Timed]) -> list[float]:
    """Return the median seconds of rounds that repeat short work; long work is timed once.

    The minimum would be misleading, because on shared cores it reflects a lucky round.
    """
    times: list[list[float]] = [[] for _ in timed]
    start = time.perf_counter()
    for _ in range(ROUNDS):
        for prepare, seconds in zip(timed, times, strict=True):
            with prepare() as action:
                seconds.append(_mean_seconds(action))
        if time.perf_counter() - start > LONG_SECONDS * len(timed):
            break
    return [median(seconds) for seconds in times]


def _mean_seconds(action: Callable[[], object]) -> float:
    """Return mean seconds of an action within a window, after a warm-up; a long action runs once."""
    start = time.perf_counter()
    action()
    if (first := time.perf_counter() - start) > LONG_SECONDS:
        return first
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < WINDOW_SECONDS:
        action()
        count += 1
    return (time.perf_counter() - start) / count


class _CompleteKeys(UnsharedAttention):
    """Attention of a strip over keys and values of a complete image, as in shared memory, on one rank."""

    def __init__(self, tokens: int, *, in_sequence: bool) -> None:
        self._tokens, self.in_sequence = tokens, in_sequence
        self._memory = torch.empty(0)
        self._kept: Any = None

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """See `token_shard.ShardedAttention`; computes all columns."""
        self._outputs = torch.empty(len(layers), len(x), len(layers[0][0]), dtype=dtype)
        sharded_ops.linears_in(self._outputs, x, layers, columns=slice(None), barrier=lambda calls: None)
        return iter(self._outputs)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        n, _, width = qkv.shape
        if self._memory.dtype != qkv.dtype or not len(self._memory):
            self._memory = torch.zeros(n, self._tokens, 2 * width // 3, dtype=qkv.dtype)
        mixed, *self._kept = sharded_ops.attention_in(self._memory, qkv, num_heads, first=0, barrier=lambda calls: None)
        return mixed
