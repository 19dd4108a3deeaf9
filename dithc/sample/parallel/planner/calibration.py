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
from dithc.engine.hcops import token_shard as part
from dithc.engine.hcops.blocks import sharded_ops
from dithc.model import DiT
from dithc.sample.parallel.attention import Apart, SharedMemoryAttention
from dithc.sample.parallel.block_cache import BlockStack
from dithc.sample.parallel.degrees import SamplingWork
from dithc.sample.parallel.parallel_denoiser import ParallelDenoiser
from dithc.sample.parallel.pipefusion import rotated_from
from dithc.sample.parallel.planner.cost_model import NOMINAL, LinkModel, MachineRates
from dithc.sample.parallel.rank_set import RankSet, cut

MOST_TOKENS, PART, BLOCKS = 1024, 4, 2  # tokens of the long strip; divisor for the short strip; number of timed blocks
ROUNDS, WINDOW_SECONDS, LONG_SECONDS = 3, 0.05, 0.5
COPY_BYTES, SMALL_BYTES, LARGE_BYTES = 16 << 20, 4 << 10, 2 << 20
REPEATS, MATRIX = 9, 256
# A long strip takes at most this multiple of its tokens' time, also if one of the two measurements was disturbed.
MOST_FIXED = 20
MOST_NODES = 4  # nodes per measurement of messages between nodes


# Measurements of a rank: seconds, two links as (latency, seconds per byte), a share, and seconds by active ranks.
UNMEASURED: dict[str, Any] = {
    **dict.fromkeys(("long", "short", "leaving", "call", "decoding", "copied", "meeting"), 0.0),
    "inside": None,
    "between": None,
    "hidden": 1.0,
    "crowded": {},
}

# Timed work: a context manager that yields the action to repeat.
Timed = Callable[[], AbstractContextManager[Callable[[], object]]]


def measure_rates(
    model: DiT | None,
    group: Group,
    *,
    work: SamplingWork,
    bf16: bool = False,
    decode: Callable[[], float] | None = None,
    nodes: Sequence[Sequence[int]],
) -> MachineRates:
    """Return the measured rates of the connected ranks; collective, equal on all.

    `model` is in evaluation mode, `nodes` the ranks of each node. `decode` decodes a part of an image and returns the
    number of parts per image.
    """
    group.barrier()
    found: dict[str, Any] = {}
    if model is not None:
        found |= computing(model, work, bf16=bf16)
        if group.size > 1:
            most = max(len(ranks) for ranks in nodes)
            place = next(ranks.index(group.rank) for ranks in nodes if group.rank in ranks)
            found["crowded"] = crowds(model, work, group, place=place, most=most, bf16=bf16)
    if decode is not None:
        begun = time.perf_counter()
        parts = decode()
        found["decoding"] = parts * (time.perf_counter() - begun)
    source, target = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.zeros(COPY_BYTES, dtype=torch.uint8)
    found["copied"] = _middle(lambda: target.copy_(source))
    if group.size > 1:
        found |= _exchanges(group, nodes, work, model)
    return _agreed([UNMEASURED | one for one in group.gather_objects(found)], work)


def _exchanges(group: Group, nodes: Sequence[Sequence[int]], work: SamplingWork, model: DiT | None) -> dict[str, Any]:
    """Measure a barrier, and messages within a node and between some nodes, with all ranks active."""
    found: dict[str, Any] = {}
    for name, parts in (("inside", nodes), ("between", _across(nodes))):
        made = group.part(parts)
        mine = next((part for part in parts if group.rank in part), [group.rank])
        ranks = RankSet(mine.index(group.rank), len(mine), made)
        group.barrier()
        if ranks.size > 1:
            found[name] = _link(ranks)
            found["hidden"] = min(found.get("hidden", 1.0), _hidden(ranks))
            if name == "inside" and model is not None and work.in_memory:
                found["meeting"] = _meeting(ranks, work)
    return found


def _across(nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the ranks with the same index on consecutive nodes, in sets of nodes."""
    some = [nodes[at : at + MOST_NODES] for at in range(0, len(nodes), MOST_NODES)]
    return [list(part) for these in some for part in zip(*these, strict=False)] if len(nodes) > 1 else []


def _link(ranks: RankSet) -> tuple[float, float]:
    """Return (seconds, seconds per byte) of the slower of two patterns: a ring step, and an all-to-all exchange."""

    def passed(size: int) -> None:
        block = torch.zeros(size, dtype=torch.uint8)
        ranks.passed_on(block, (size,))()

    def swapped(size: int) -> None:
        part = size // ranks.size
        ranks.swapped([torch.zeros(part, dtype=torch.uint8)] * ranks.size, [(part,)] * ranks.size)

    latency = byte = 0.0
    for pattern, share in ((passed, 1.0), (swapped, (ranks.size - 1) / ranks.size)):
        small = _middle(partial(pattern, SMALL_BYTES))
        large = _middle(partial(pattern, LARGE_BYTES))
        latency = max(latency, small)
        byte = max(byte, (large - small) / (LARGE_BYTES - SMALL_BYTES) / share)
    return latency, byte


def _hidden(ranks: RankSet) -> float:
    """Return the share of a message hidden behind computing."""
    x = torch.zeros(MATRIX, MATRIX)
    block = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
    message = _middle(lambda: ranks.passed_on(block, (LARGE_BYTES,))())
    product = _middle(lambda: x @ x)
    products = 1 + int(message / product)  # longer than the message

    def computed() -> None:
        for _ in range(products):
            x @ x

    def both() -> None:
        arrived = ranks.passed_on(block, (LARGE_BYTES,))
        computed()
        arrived()

    return min(1.0, max(0.0, 1 - (_middle(both) - _middle(computed)) / message))


def _meeting(ranks: RankSet, work: SamplingWork) -> float:
    """Return the seconds of a barrier: attention to one token per rank."""
    over = SharedMemoryAttention(ranks, cut(ranks.size, ranks.size))
    qkv = torch.zeros(1, 1, 3 * work.width)
    return _middle(lambda: over.attention(qkv, work.heads))


def _middle(action: Callable[[], Any]) -> float:
    action()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def _agreed(each: Sequence[dict[str, Any]], work: SamplingWork) -> MachineRates:
    """Return rates from the slowest measurement of all ranks."""

    def slowest(name: str) -> float:
        return float(max(one[name] for one in each))

    def link(name: str) -> LinkModel | None:
        known = [one[name] for one in each if one[name] is not None]
        if not known:
            return None
        byte = max(byte for _, byte in known)
        return LinkModel(latency=max(latency for latency, _ in known), bandwidth=1 / byte if byte > 0 else float("inf"))

    rates: dict[str, Any] = {"flops": NOMINAL.flops}
    if work.heads and slowest("long") > 0:
        long, short = strips(work)
        token = (work.row_flops - work.uncut_flops) / work.tokens / work.depth  # FLOPs per token and block
        # Seconds for t tokens: fixed + slope t.
        slope = (slowest("long") - slowest("short")) / (long - short) if long > short else 0.0
        slope = min(max(slope, slowest("long") / long / MOST_FIXED), slowest("long") / long)
        fixed = slowest("long") - slope * long
        linear = work.linear_flops / (work.row_flops - work.uncut_flops)
        rates = {"flops": token / slope, "half_tokens": fixed / slope / linear}
    return MachineRates(
        **rates,
        inside=link("inside"),
        between=link("between"),
        copying=COPY_BYTES / slowest("copied"),
        meeting=slowest("meeting") or NOMINAL.meeting,
        leaving=slowest("leaving"),
        hidden=min(one["hidden"] for one in each),
        call=slowest("call"),
        decoding=slowest("decoding"),
        crowding=_crowding(each),
        source=f"measured on {len(each)} rank(s)",
    )


def _crowding(each: Sequence[dict[str, Any]]) -> Sequence[tuple[int, float]]:
    """Return `MachineRates.crowding`; fewer active ranks are never slower, also if a measurement was disturbed."""
    seconds = {ranks: max(one["crowded"].get(ranks, 0.0) for one in each) for one in each for ranks in one["crowded"]}
    found: list[tuple[int, float]] = []
    for ranks in sorted(seconds, reverse=True):
        share = seconds[ranks] / seconds[max(seconds)]
        found.insert(0, (ranks, min(share, found[0][1]) if found else 1.0))
    return found


def computing(model: DiT, work: SamplingWork, *, bf16: bool) -> dict[str, float]:
    """Return seconds of blocks and calls by name.

    `long` and `short` are the seconds of a block with a long and a short strip of one image. `leaving` is the extra
    time of a block in two calls, and `call` the time of a network call outside of blocks.
    """
    long, short = strips(work)
    blocks = model.chain()[:BLOCKS]
    timed = {"long": _block(model, blocks, work, long), "short": _block(model, blocks, work, short)}
    if work.in_memory and short < long:
        timed["left"] = _block(model, blocks, work, short, in_sequence=False)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        found = dict(zip(timed, _typical(list(timed.values())), strict=True))
    found = {name: seconds / min(BLOCKS, work.depth) for name, seconds in found.items()}
    found["leaving"] = max(0.0, found.pop("left", 0.0) - found["short"])
    return found | {"call": _ends(model, work, found["long"], bf16=bf16)}


def crowds(model: DiT, work: SamplingWork, group: Group, *, place: int, most: int, bf16: bool) -> dict[int, float]:
    """Return seconds of a block by the active first ranks per node, of at most `most`; `place` is this rank's index."""
    found = {}
    block = _block(model, model.chain()[:BLOCKS], work, strips(work)[1])
    for ranks in sorted({min(1 << power, most) for power in range(most.bit_length() + 1)}):
        group.barrier()
        if place < ranks:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                (found[ranks],) = _typical([block])
    return found


def strips(work: SamplingWork) -> tuple[int, int]:
    """Return the tokens of a long and a short strip."""
    long = min(work.tokens, MOST_TOKENS)
    return long, max(1, long // PART)


def _block(model: DiT, blocks: BlockStack, work: SamplingWork, tokens: int, *, in_sequence: bool = True) -> Timed:
    @contextmanager
    def entered() -> Iterator[Callable[[], object]]:
        with part.part_of(work.tokens, over), rotated_from(model, slice(0, tokens)):
            yield partial(blocks, strip, c)

    width = model.config.hidden_size
    strip, c = torch.zeros(1, tokens, width), torch.zeros(1, width)
    over = _AllKeys(work.tokens, in_sequence=in_sequence) if work.in_memory else None
    return entered


def _ends(model: DiT, work: SamplingWork, block: float, *, bf16: bool) -> float:
    """Return seconds of a call outside of blocks; 0 if a call takes too long to measure."""
    if work.tokens > MOST_TOKENS or work.depth * block > LONG_SECONDS:
        return 0.0
    config = model.config
    x, y = torch.zeros(1, config.in_channels, *config.size), torch.zeros(1, dtype=torch.long)
    denoiser = ParallelDenoiser(model, bf16=bf16)
    (whole,) = _typical([lambda: nullcontext(lambda: denoiser(x, torch.zeros(1), y))])
    return max(0.0, whole - work.depth * block)


def _typical(timed: Sequence[Timed]) -> list[float]:
    """Return the median seconds of rounds that repeat short work; long work is timed once.

    The minimum would be misleading, because on shared cores it reflects a lucky round.
    """
    found: list[list[float]] = [[] for _ in timed]
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        for one, seconds in zip(timed, found, strict=True):
            with one() as action:
                seconds.append(_window(action))
        if time.perf_counter() - begun > LONG_SECONDS * len(timed):
            break
    return [median(seconds) for seconds in found]


def _window(action: Callable[[], object]) -> float:
    """Return mean seconds of an action within a window, after a warm-up; a long action runs once."""
    begun = time.perf_counter()
    action()
    if (first := time.perf_counter() - begun) > LONG_SECONDS:
        return first
    count, begun = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - begun < WINDOW_SECONDS:
        action()
        count += 1
    return (time.perf_counter() - begun) / count


class _AllKeys(Apart):
    """Attention of a strip over keys and values of a complete image, as in shared memory, on one rank."""

    def __init__(self, tokens: int, *, in_sequence: bool) -> None:
        self._tokens, self.in_sequence = tokens, in_sequence
        self._memory = torch.empty(0)
        self._kept: Any = None

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """See `token_shard.ShardedAttention`; computes all columns."""
        self._outputs = torch.empty(len(layers), len(x), len(layers[0][0]), dtype=dtype)
        sharded_ops.linears_in(self._outputs, x, layers, columns=slice(None), meet=lambda calls: None)
        return iter(self._outputs)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        n, _, width = qkv.shape
        if self._memory.dtype != qkv.dtype or not len(self._memory):
            self._memory = torch.zeros(n, self._tokens, 2 * width // 3, dtype=qkv.dtype)
        mixed, *self._kept = sharded_ops.attention_in(self._memory, qkv, num_heads, first=0, meet=lambda calls: None)
        return mixed
