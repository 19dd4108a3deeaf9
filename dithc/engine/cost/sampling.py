"""Predicted seconds of a sampling run for all degrees of parallelism, and the best degrees.

Legend: n rows of a batch on a rank, t tokens of a rank, T of an image, D width, L blocks.
Included: products and attention, shared by tokens, and slower for few tokens; per-row work, per rank or shared in memory; all
communication; the decoder. Not included: sampler arithmetic and writing.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

from dithc.core.logging import user_error
from dithc.engine.cost.links import Links

FP32_BYTES = 4
ASSUMED = Links.assumed()
COPY_BANDWIDTH = 10e9  # assumed bytes per second of a rank's copies in memory
BARRIER_SECONDS = 20e-6  # assumed for the ranks of a node
RESOLUTION = 0.005  # resolution of predictions, as a share of the least seconds
MAX_RANKS = 1 << 14  # limit for enumeration within seconds


@dataclass(frozen=True, kw_only=True)
class ParallelDegrees:
    """Numbers of ranks that share parts of a shard; their product is the group size.

    Attributes:
        data: ranks that share the images of a shard, without communication until the end.
        cfg: 2 to compute both branches of guidance simultaneously.
        shared: ranks of a node that share the tokens of an image, with keys and values in shared memory.
        windows: ranks that share the windows of a scene at each step.
    """

    data: int = 1
    cfg: int = 1
    shared: int = 1
    windows: int = 1

    @property
    def rows(self) -> int:
        """Ranks that share the rows of a call: guidance branches, windows of a scene."""
        return self.cfg * self.windows

    @property
    def size(self) -> int:
        return self.data * self.rows * self.shared

    def __str__(self) -> str:
        parts = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if getattr(self, field.name) > 1]
        return " x ".join(parts) or "one rank"


@dataclass(frozen=True, kw_only=True)
class SamplingWork:
    """Work of a sampling run and of one row (an image in one branch).

    Attributes:
        shards: images per shard.
        branches: 2 with guidance, else 1.
        heads: heads of the network; 0 without a network.
        windows: windows per scene and step; 1 for images of the network's native size.
        linear_flops: FLOPs per row of products that are shared by tokens.
        uncut_flops: FLOPs per row for timestep and label: shared in shared memory, else replicated.
        numbers: outputs per token.
        number_bytes: bytes per activation.
        calls: network calls per batch.
        lone_calls: calls with one branch only, outside the guidance interval.
        batch: maximum images per call.
        in_memory: whether ranks of a node can share keys and values in memory.
    """

    shards: Sequence[int]
    branches: int = 1
    tokens: int = 1
    heads: int = 0
    windows: int = 1
    width: int = 0
    depth: int = 0
    linear_flops: float = 0.0
    uncut_flops: float = 0.0
    numbers: int = 0
    number_bytes: int = 4
    calls: int = 1
    lone_calls: int = 0
    batch: int = 64
    in_memory: bool = True

    def attention_flops(self, tokens: int) -> float:
        """Return the FLOPs of attention among `tokens` tokens: 4 L t^2 D."""
        return 4.0 * self.depth * tokens**2 * self.width

    @property
    def row_flops(self) -> float:
        return self.linear_flops + self.attention_flops(self.tokens) + self.uncut_flops


def rejection_reason(degrees: ParallelDegrees, work: SamplingWork, *, ranks: int, ranks_per_node: int) -> str | None:
    """Return why degrees do not fit some work, or None."""
    most_images = max(work.shards, default=1)
    if degrees.size > ranks:
        return f"{degrees.size} ranks, and there are {ranks}"
    if degrees.data > most_images:
        return f"{degrees.data} ranks for the {most_images} images of a shard"
    if degrees.cfg > work.branches:
        return "without guidance the network has a single branch"
    if degrees.windows > work.windows:
        return f"{degrees.windows} ranks for {work.windows} window{'s' * (work.windows > 1)} of a scene"
    if degrees.shared > work.tokens:
        return f"{degrees.shared} ranks for {work.tokens} tokens"
    if degrees.shared > 1 and work.heads == 0:
        return "tokens can only be shared with a network"
    if degrees.shared > 1 and not work.in_memory:
        return "keys and values in shared memory require the C kernels"
    if degrees.shared > ranks_per_node or ranks_per_node % degrees.shared:
        return f"{degrees.shared} does not divide the {ranks_per_node} ranks per node"
    return None


def candidates(ranks: int, *, windows: int = 1, given: int | None = None) -> Iterator[ParallelDegrees]:
    """Yield all degrees that share one image of `windows` windows among at most `ranks` ranks, valid or not.

    Window degrees that do not reduce the windows per rank are skipped, unless the degree of windows is `given`.
    """
    window_degrees = [
        degree for degree in range(1, windows + 1) if degree == 1 or -(-windows // degree) < -(-windows // (degree - 1))
    ]
    for cfg, windowed in product((1, 2), window_degrees if given is None else [given]):
        limit = ranks // (cfg * windowed)
        yield from (ParallelDegrees(cfg=cfg, windows=windowed, shared=tokens) for tokens in range(1, limit + 1))


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """Measured rates of the slowest rank with all ranks active.

    Attributes:
        flops: FLOP/s with many tokens.
        half_tokens: total tokens of all rows at which products reach half of `flops`; attention does not depend on it.
        call_seconds: time of a network call outside of blocks.
        decoding_seconds: time to decode an image.
    """

    flops: float = 1e12
    half_tokens: float = 16.0
    call_seconds: float = 0.0
    decoding_seconds: float = 0.0


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of a call: computing time of a rank, and communication time in addition."""

    computing: float
    exchange: float

    @property
    def whole(self) -> float:
        return self.computing + self.exchange


@dataclass(frozen=True, kw_only=True)
class SamplingCosts:
    """Predicted seconds of some work on equal ranks; `links` connect nodes, `copies` are a rank's bytes per second."""

    work: SamplingWork
    ranks: int
    ranks_per_node: int
    rates: RankRates = RankRates()
    links: Links = ASSUMED
    copies: float = COPY_BANDWIDTH

    def call(self, degrees: ParallelDegrees, rows: int) -> PredictedTime:
        """Return the seconds of a network call with these rows, of both branches and all windows."""
        work, rates = self.work, self.rates
        if work.heads == 0:
            return PredictedTime(0.0, 0.0)
        n = -(-rows // degrees.rows) if rows >= degrees.rows else rows
        t = -(-work.tokens // degrees.shared)
        share = t / work.tokens
        attention = n * share * work.attention_flops(work.tokens)
        products = n * share * work.linear_flops * (1 + rates.half_tokens / (n * t))
        computing = (products + attention + n * work.uncut_flops / degrees.shared) / rates.flops
        exchange = self._row_seconds(degrees, n, rows) + self._token_seconds(degrees, n, t)
        return PredictedTime(computing + rates.call_seconds, exchange)

    def job(self, degrees: ParallelDegrees) -> PredictedTime:
        """Return the seconds until the busiest group has generated its shards."""
        groups = min(self.ranks // degrees.size, len(self.work.shards))
        by_size = {images: self._shard(degrees, images) for images in set(self.work.shards)}
        busiest = PredictedTime(0.0, 0.0)
        for shards in _distributions(tuple(self.work.shards), groups):
            computing = sum(count * by_size[images].computing for images, count in shards.items())
            exchange = sum(count * by_size[images].exchange for images, count in shards.items())
            busiest = max(busiest, PredictedTime(computing, exchange), key=lambda seconds: seconds.whole)
        return busiest

    @property
    def alone(self) -> float:
        """Seconds on one rank."""
        counts = Counter(self.work.shards).items()
        return sum(self._shard(ParallelDegrees(), images).whole * count for images, count in counts)

    def _shard(self, degrees: ParallelDegrees, images: int) -> PredictedTime:
        work = self.work
        computing = exchange = 0.0
        full_batches, remainder = divmod(-(-images // degrees.data), work.batch)
        for size, repeats in ((work.batch, full_batches), (remainder, 1)):
            if size * repeats == 0:
                continue
            for branches, calls in ((work.branches, work.calls - work.lone_calls), (1, work.lone_calls)):
                seconds = self.call(degrees, size * branches * work.windows)
                computing += repeats * calls * seconds.computing
                exchange += repeats * calls * seconds.exchange
            computing += repeats * -(-size // (degrees.rows * degrees.shared)) * self.rates.decoding_seconds
        return PredictedTime(computing, exchange)

    def _is_inside(self, span: int) -> bool:
        """Return whether consecutive groups of this size always stay within a node."""
        return self.ranks <= self.ranks_per_node or self.ranks_per_node % span == 0

    def _message(self, size: float, span: int) -> float:
        if self._is_inside(span):
            return self.links.through_memory(size)
        return self.links.message(size, streams=self.ranks_per_node)

    def _gather_seconds(self, members: int, whole: float, *, span: int) -> float:
        """Return the seconds to gather a tensor of this number of bytes on all ranks, in memory or by messages."""
        part = whole / members
        if self.work.in_memory and self._is_inside(span):
            return BARRIER_SECONDS + (part + whole) / self.copies
        return self._message(whole - part, span)

    def _row_seconds(self, degrees: ParallelDegrees, n: int, rows: int) -> float:
        """Return the seconds to exchange outputs in fp32, once per call."""
        if degrees.rows == 1 or rows < degrees.rows:
            return 0.0
        whole = degrees.rows * n * self.work.tokens * self.work.numbers * FP32_BYTES
        return self._gather_seconds(degrees.rows, whole, span=degrees.rows * degrees.shared)

    def _token_seconds(self, degrees: ParallelDegrees, n: int, t: int) -> float:
        """Return the exchange seconds of ranks that share tokens, per block and for the final patches."""
        work = self.work
        if degrees.shared == 1:
            return 0.0
        strip = n * t * work.width * work.number_bytes  # bytes of (n, t, D)
        whole = degrees.shared * n * t * work.numbers * work.number_bytes
        ends = self._gather_seconds(degrees.shared, whole, span=degrees.shared)
        return ends + work.depth * (2 * strip / self.copies + BARRIER_SECONDS)


@dataclass(frozen=True)
class DegreesEstimate:
    """Degrees and their prediction.

    Attributes:
        seconds: time until the last group is done.
        exchange: part of `seconds` in which the busiest group only communicates.
        speedup: over one rank.
    """

    degrees: ParallelDegrees
    seconds: float
    exchange: float
    speedup: float

    def order(self, least: float) -> tuple[int, int, int, int, float]:
        """Return the sort key: seconds in steps of RESOLUTION, then degrees of tokens and rows, size."""
        interval = int((self.seconds / least - 1) / RESOLUTION) if least > 0 else 0
        return interval, self.degrees.shared, self.degrees.rows, self.degrees.size, self.seconds

    @property
    def exchange_share(self) -> float:
        return self.exchange / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class DegreesTable:
    """Legal choices, best first, rejected options with reasons, and the costs that order them."""

    legal: Sequence[DegreesEstimate]
    rejected: Sequence[tuple[ParallelDegrees, str]]
    costs: SamplingCosts

    @property
    def best(self) -> DegreesEstimate:
        return self.legal[0]

    def describe(self) -> str:
        """Return a line with the choice, its time and the runner-up."""
        best, ranks = self.best, self.costs.ranks
        rival = f"; next: {self.legal[1].degrees}, {self.legal[1].seconds:.3g} s" if len(self.legal) > 1 else ""
        return (
            f"{best.degrees}: {best.seconds:.3g} s predicted ({best.exchange_share:.1%} exchange), {best.speedup:.3g} times "
            f"one rank, {best.speedup / ranks:.0%} of {ranks} ranks{rival}"
        )

    def table(self, most: int = 16) -> str:
        """Return lines for the user: the best degrees, then rejected ones."""
        ranks = self.costs.ranks
        lines = [f"   seconds  exchange  times one rank  of {ranks} ranks  degrees"]
        lines += [
            f"{one.seconds:10.4g}  {one.exchange_share:8.1%}  {one.speedup:14.4g}  "
            f"{one.speedup / ranks:{len(str(ranks)) + 9}.1%}  {one.degrees}{'  <- chosen' if one is self.best else ''}"
            for one in self.legal[:most]
        ]
        if len(self.legal) > most:
            lines.append(f"  and {len(self.legal) - most} more, {self.legal[-1].seconds:.4g} s the slowest")
        return "\n".join([*lines, *self._rejections()])

    def _rejections(self) -> Iterator[str]:
        groups: dict[str, list[tuple[ParallelDegrees, str]]] = {}
        for degrees, reason in self.rejected:
            groups.setdefault(re.sub(r"\d+", "N", reason), []).append((degrees, reason))
        if groups:
            yield f"rejected: {len(self.rejected)}"
        for (degrees, reason), *repeats in groups.values():
            yield f"  {degrees}: {reason}{f'; and {len(repeats)} more' if repeats else ''}"


def rank_degrees(costs: SamplingCosts, *, fixed: dict[str, int] | None = None) -> DegreesTable:
    """Predict all valid degrees; `fixed` degrees are given. UserError with the reason if none is possible.

    Of data degrees with equal largest parts, only the smallest is considered.
    """
    if costs.ranks > MAX_RANKS:
        fix = "start fewer ranks, or set lower degrees"
        raise user_error("ranks that share a sampling run", got=costs.ranks, expected=f"at most {MAX_RANKS}", fix=fix)
    fixed = fixed or {}
    legal: list[DegreesEstimate] = []
    rejected: list[tuple[ParallelDegrees, str]] = []
    work, alone = costs.work, costs.alone
    place = {"ranks": costs.ranks, "ranks_per_node": costs.ranks_per_node}
    most_ranks = 2 * work.windows * work.tokens  # with more ranks than this, some have no part of an image
    for candidate in candidates(min(costs.ranks, most_ranks), windows=work.windows, given=fixed.get("windows")):
        if any(getattr(candidate, name) != degree for name, degree in fixed.items() if name != "data"):
            continue
        if (reason := rejection_reason(candidate, work, **place)) is not None:
            rejected.append((candidate, reason))
            continue
        for data in _data_degrees(costs, candidate, fixed):
            degrees = replace(candidate, data=data)
            if (reason := rejection_reason(degrees, work, **place)) is not None:
                rejected.append((degrees, reason))
                continue
            time = costs.job(degrees)
            legal.append(DegreesEstimate(degrees, time.whole, time.exchange, alone / time.whole if time.whole else 1.0))
    if not legal:
        reason = rejection_reason(ParallelDegrees(**fixed), work, **place)
        reason = reason or (rejected[0][1] if rejected else "no degrees are left")
        requested = ", ".join(f"{name} {degree}" for name, degree in fixed.items()) or "no degrees"
        expected = f"degrees of at most {costs.ranks} ranks, {costs.ranks_per_node} per node, that fit the work"
        fix = "set a degree to auto, or start another number of ranks"
        raise user_error("machine.sampling", got=f"{requested}: {reason}", expected=expected, fix=fix)
    least = min(choice.seconds for choice in legal)
    return DegreesTable(legal=sorted(legal, key=lambda choice: choice.order(least)), rejected=rejected, costs=costs)


def _data_degrees(costs: SamplingCosts, candidate: ParallelDegrees, fixed: dict[str, int]) -> Iterator[int]:
    """Yield the smallest data degree for each number of images per part."""
    if "data" in fixed:
        yield fixed["data"]
        return
    sizes = set()
    for data in range(1, min(max(costs.work.shards, default=1), costs.ranks // candidate.size) + 1):
        largest = tuple(-(-images // data) for images in sorted(set(costs.work.shards)))
        if largest not in sizes:
            sizes.add(largest)
            yield data


@cache
def _distributions(shards: tuple[int, ...], groups: int) -> Sequence[Counter[int]]:
    """Return the distinct distributions of shards to groups, by images per shard."""
    distributions = {tuple(sorted(shards[group::groups])) for group in range(min(groups, len(shards)))}
    return [Counter(part) for part in distributions]
