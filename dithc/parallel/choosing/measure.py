"""Measured rates of the connected ranks: blocks, copies, barriers, messages. The slowest rank counts.

The measurement takes a few seconds.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from dithc.comm import Group
from dithc.model import DiT
from dithc.parallel.attention import SharedKeys
from dithc.parallel.choosing.blocks import computing, crowds, strips
from dithc.parallel.choosing.costs import NOMINAL, Link, Rates
from dithc.parallel.degrees import Work
from dithc.parallel.ranks import Ranks, cut

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


def measured(
    model: DiT | None,
    group: Group,
    *,
    work: Work,
    bf16: bool = False,
    decode: Callable[[], float] | None = None,
    nodes: Sequence[Sequence[int]],
) -> Rates:
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


def _exchanges(group: Group, nodes: Sequence[Sequence[int]], work: Work, model: DiT | None) -> dict[str, Any]:
    """Measure a barrier, and messages within a node and between some nodes, with all ranks active."""
    found: dict[str, Any] = {}
    for name, parts in (("inside", nodes), ("between", _across(nodes))):
        made = group.part(parts)
        mine = next((part for part in parts if group.rank in part), [group.rank])
        ranks = Ranks(mine.index(group.rank), len(mine), made)
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


def _link(ranks: Ranks) -> tuple[float, float]:
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


def _hidden(ranks: Ranks) -> float:
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


def _meeting(ranks: Ranks, work: Work) -> float:
    """Return the seconds of a barrier: attention to one token per rank."""
    over = SharedKeys(ranks, cut(ranks.size, ranks.size))
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


def _agreed(each: Sequence[dict[str, Any]], work: Work) -> Rates:
    """Return rates from the slowest measurement of all ranks."""

    def slowest(name: str) -> float:
        return float(max(one[name] for one in each))

    def link(name: str) -> Link | None:
        known = [one[name] for one in each if one[name] is not None]
        if not known:
            return None
        byte = max(byte for _, byte in known)
        return Link(latency=max(latency for latency, _ in known), bandwidth=1 / byte if byte > 0 else float("inf"))

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
    return Rates(
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
    """Return `Rates.crowding`; fewer active ranks are never slower, also if a measurement was disturbed."""
    seconds = {ranks: max(one["crowded"].get(ranks, 0.0) for one in each) for one in each for ranks in one["crowded"]}
    found: list[tuple[int, float]] = []
    for ranks in sorted(seconds, reverse=True):
        share = seconds[ranks] / seconds[max(seconds)]
        found.insert(0, (ranks, min(share, found[0][1]) if found else 1.0))
    return found
