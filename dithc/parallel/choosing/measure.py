"""What the ranks that are here do, measured in a few seconds: blocks, copies, meetings, messages; the slowest of all ranks.

Legend: T tokens of an image, t of a strip, D width, L blocks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dithc.comm import Group
from dithc.hcops import across, part
from dithc.model import DiT
from dithc.parallel.attention import SharedKeys
from dithc.parallel.choosing.costs import NOMINAL, Link, Rates
from dithc.parallel.degrees import Work
from dithc.parallel.denoise import Denoiser
from dithc.parallel.ranks import Ranks, cut
from dithc.parallel.strips import rotated_from

MOST_TOKENS, PART, BLOCKS = 1024, 4, 2  # of the longer strip; of it in the shorter one; blocks that are timed
COPY_BYTES, SMALL_BYTES, LARGE_BYTES = 16 << 20, 4 << 10, 2 << 20
REPEATS, LONG_SECONDS, MATRIX = 5, 0.5, 256
MOST_FIXED = (
    20  # a long strip takes at most so many times what its tokens do: whatever disturbed one of the two measurements
)
MOST_NODES = 4  # that a message between nodes is tried among


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Of one rank: seconds, but for two links, of (seconds of no bytes, seconds a byte), and a share."""

    long: float = 0.0
    short: float = 0.0
    leaving: float = 0.0
    call: float = 0.0
    decoding: float = 0.0
    copied: float = 0.0
    meeting: float = 0.0
    inside: tuple[float, float] | None = None
    between: tuple[float, float] | None = None
    hidden: float = 1.0


class _AllKeys:
    """Attention of a strip over keys and values of a whole image, as where ranks share memory, without the others."""

    def __init__(self, tokens: int, *, in_sequence: bool) -> None:
        self._tokens, self.in_sequence = tokens, in_sequence
        self.turn = (0, 0)
        self.most_tokens = 0  # of short strips, which are always one call where they may be
        self._memory = torch.empty(0)
        self._kept: Any = None

    def begin(self) -> None:
        """See `hcops.part.Across`."""

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """See `hcops.part.Across`; all of their columns."""
        self._outputs = torch.empty(len(layers), len(x), len(layers[0][0]), dtype=dtype)
        across.linears_in(self._outputs, x, layers, columns=slice(None), meet=lambda calls: None)
        return iter(self._outputs)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        """See `hcops.part.Across`."""
        n, _, width = qkv.shape
        if self._memory.dtype != qkv.dtype or not len(self._memory):
            self._memory = torch.zeros(n, self._tokens, 2 * width // 3, dtype=qkv.dtype)
        mixed, *self._kept = across.attention_in(self._memory, qkv, num_heads, first=0, meet=lambda calls: None)
        return mixed

    def absent(self) -> str | None:
        """Nobody is waited for."""
        return None


def measured(
    model: DiT | None,
    group: Group,
    *,
    work: Work,
    bf16: bool = False,
    decode: Callable[[], float] | None = None,
    nodes: Sequence[Sequence[int]] = (),
) -> Rates:
    """The rates of the ranks that are here; every rank calls it with the same, and has the same.

    Args:
        model: in evaluation mode; None where there is no network.
        group: the connected ranks.
        work: of the model.
        bf16: whether products are of bf16.
        decode: decodes a part of an image, and says how many such parts an image is.
        nodes: the ranks of each node.
    """
    group.barrier()
    found: dict[str, Any] = {}
    if model is not None:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            found |= _computing(model, work)
        found["call"] = _ends(model, work, found["long"], bf16=bf16)
    if decode is not None:
        begun = time.perf_counter()
        parts = decode()
        found["decoding"] = parts * (time.perf_counter() - begun)
    source, target = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.zeros(COPY_BYTES, dtype=torch.uint8)
    found["copied"] = _least(lambda: target.copy_(source))
    if group.size > 1:
        found |= _exchanges(group, nodes, work, model)
    return _agreed([_Found(**one) for one in group.gather_objects(found)], work)


def _computing(model: DiT, work: Work) -> dict[str, float]:
    """Seconds of a block with a long strip of one image and with a short one, and what it takes more in two calls."""
    long = min(work.tokens, MOST_TOKENS)
    short = max(1, long // PART)
    whole = _block(model, work, long)
    if short == long:
        return {"long": whole, "short": whole}
    once = _block(model, work, short)
    if not work.in_memory:
        return {"long": whole, "short": once}
    return {"long": whole, "short": once, "leaving": max(0.0, _block(model, work, short, in_sequence=False) - once)}


def _block(model: DiT, work: Work, tokens: int, *, in_sequence: bool = True) -> float:
    width = model.config.hidden_size
    strip, c = torch.zeros(1, tokens, width), torch.zeros(1, width)
    over = _AllKeys(work.tokens, in_sequence=in_sequence) if work.in_memory else None
    blocks = model.chain()[:BLOCKS]
    with part.part_of(work.tokens, over), rotated_from(model, slice(0, tokens)):
        return _least(lambda: blocks(strip, c)) / min(BLOCKS, model.config.depth)


def _ends(model: DiT, work: Work, block: float, *, bf16: bool) -> float:
    """Seconds of a call beside its blocks; none where a call takes too long to be tried."""
    if work.tokens > MOST_TOKENS or work.depth * block > LONG_SECONDS:
        return 0.0
    config = model.config
    x, y = torch.zeros(1, config.in_channels, *config.size), torch.zeros(1, dtype=torch.long)
    denoiser = Denoiser(model, bf16=bf16)
    return max(0.0, _least(lambda: denoiser(x, torch.zeros(1), y)) - work.depth * block)


def _exchanges(group: Group, nodes: Sequence[Sequence[int]], work: Work, model: DiT | None) -> dict[str, Any]:
    """A meeting, and messages inside a node and between some nodes, by all ranks at once."""
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
    """Ranks of the same place on some nodes that follow each other."""
    some = [nodes[at : at + MOST_NODES] for at in range(0, len(nodes), MOST_NODES)]
    return [list(part) for these in some for part in zip(*these, strict=False)] if len(nodes) > 1 else []


def _link(ranks: Ranks) -> tuple[float, float]:
    """(seconds, seconds a byte) of the slower of both patterns: a round of a ring, and an exchange of everybody with all."""

    def passed(size: int) -> None:
        block = torch.zeros(size, dtype=torch.uint8)
        ranks.passed_on(block, (size,))()

    def swapped(size: int) -> None:
        part = size // ranks.size
        ranks.swapped([torch.zeros(part, dtype=torch.uint8)] * ranks.size, [(part,)] * ranks.size)

    latency = byte = 0.0
    for pattern, share in ((passed, 1.0), (swapped, (ranks.size - 1) / ranks.size)):
        small = _least(partial(pattern, SMALL_BYTES), same=True)
        large = _least(partial(pattern, LARGE_BYTES), same=True)
        latency = max(latency, small)
        byte = max(byte, (large - small) / (LARGE_BYTES - SMALL_BYTES) / share)
    return latency, byte


def _hidden(ranks: Ranks) -> float:
    """The share of a message that takes no time where its rank computes meanwhile."""
    x = torch.zeros(MATRIX, MATRIX)
    block = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
    message = _least(lambda: ranks.passed_on(block, (LARGE_BYTES,))(), same=True)
    product = _least(lambda: x @ x)
    products = 1 + int(message / product)  # longer than the message

    def computed() -> None:
        for _ in range(products):
            x @ x

    def both() -> None:
        arrived = ranks.passed_on(block, (LARGE_BYTES,))
        computed()
        arrived()

    return min(1.0, max(0.0, 1 - (_least(both, same=True) - _least(computed)) / message))


def _meeting(ranks: Ranks, work: Work) -> float:
    """Seconds of a meeting: attention to a token of each rank."""
    over = SharedKeys(ranks, cut(ranks.size, ranks.size))
    qkv = torch.zeros(1, 1, 3 * work.width)
    return _least(lambda: over.attention(qkv, work.heads), same=True)


def _least(action: Callable[[], Any], *, same: bool = False) -> float:
    """Seconds of an action, the least of some; of one alone where it takes long, unless all ranks must do the `same`."""
    action()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
        if sum(seconds) > LONG_SECONDS and not same:
            break
    return min(seconds)


def _agreed(everybody: Sequence[_Found], work: Work) -> Rates:
    """The slowest of all ranks, as rates."""
    each = [asdict(one) for one in everybody]

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
        long = min(work.tokens, MOST_TOKENS)
        short = max(1, long // PART)
        token = (work.row_flops - work.uncut_flops) / work.tokens / work.depth  # FLOP of a token in a block
        # Seconds of t tokens: fixed + slope t.
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
        source=f"measured on {len(everybody)} rank(s)",
    )
