"""Predicted seconds of a sampling run for all degrees of parallelism, and the best degrees.

Included: network calls, the exchange of their outputs, and the decoder. Not included: sampler arithmetic and writing.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

from dithc.core.logging import user_error
from dithc.engine.cost.links import Links

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
        windows: ranks that share the windows of a scene at each step.
    """

    data: int = 1
    cfg: int = 1
    windows: int = 1

    @property
    def rows(self) -> int:
        """Ranks that share the rows of a call: guidance branches, windows of a scene."""
        return self.cfg * self.windows

    @property
    def size(self) -> int:
        return self.data * self.rows

    def __str__(self) -> str:
        parts = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if getattr(self, field.name) > 1]
        return " x ".join(parts) or "one rank"


@dataclass(frozen=True, kw_only=True)
class SamplingWork:
    """Work of a sampling run.

    Attributes:
        shards: images per shard.
        branches: 2 with guidance, else 1.
        windows: windows per scene and step; 1 for images of the network's native size.
        row_bytes: bytes of the output of a row (an image or window in one branch).
        calls: network calls per batch.
        lone_calls: calls with one branch only, outside the guidance interval.
        batch: maximum images per call.
        in_memory: whether ranks of a node can exchange in shared memory.
    """

    shards: Sequence[int]
    branches: int = 1
    windows: int = 1
    row_bytes: float = 0.0
    calls: int = 1
    lone_calls: int = 0
    batch: int = 64
    in_memory: bool = True


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """Measured seconds of the slowest rank with all ranks active: a network call and each of its rows, a decoded image."""

    call_seconds: float = 0.0
    row_seconds: float = 0.0
    decoding_seconds: float = 0.0


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of computing, and of communication in addition."""

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
        is_shared = 1 < degrees.rows <= rows
        n = -(-rows // degrees.rows) if is_shared else rows
        exchange = self._gather_seconds(degrees.rows, degrees.rows * n * self.work.row_bytes) if is_shared else 0.0
        return PredictedTime(self.rates.call_seconds + n * self.rates.row_seconds, exchange)

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
            computing += repeats * -(-size // degrees.rows) * self.rates.decoding_seconds
        return PredictedTime(computing, exchange)

    def _gather_seconds(self, members: int, whole: float) -> float:
        """Return the seconds to gather a tensor of this number of bytes on all ranks, in memory or by messages."""
        part = whole / members
        if self.ranks > self.ranks_per_node and self.ranks_per_node % members:  # a group crosses nodes
            return self.links.message(whole - part, streams=self.ranks_per_node)
        if self.work.in_memory:
            return BARRIER_SECONDS + (part + whole) / self.copies
        return self.links.through_memory(whole - part)


def rejection_reason(degrees: ParallelDegrees, work: SamplingWork, *, ranks: int) -> str | None:
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
    return None


def candidates(ranks: int, *, windows: int, given: int | None) -> Iterator[ParallelDegrees]:
    """Yield all degrees that share one image of `windows` windows among at most `ranks` ranks, valid or not.

    Window degrees that do not reduce the windows per rank are skipped, unless the degree of windows is `given`.
    """
    window_degrees = [
        degree for degree in range(1, windows + 1) if degree == 1 or -(-windows // degree) < -(-windows // (degree - 1))
    ]
    for cfg, windowed in product((1, 2), window_degrees if given is None else [given]):
        if cfg * windowed <= ranks:
            yield ParallelDegrees(cfg=cfg, windows=windowed)


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

    def order(self, least: float) -> tuple[int, int, int, float]:
        """Return the sort key: seconds in steps of RESOLUTION, then the degree of rows, and the size."""
        interval = int((self.seconds / least - 1) / RESOLUTION) if least > 0 else 0
        return interval, self.degrees.rows, self.degrees.size, self.seconds

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
    for candidate in candidates(costs.ranks, windows=work.windows, given=fixed.get("windows")):
        if any(getattr(candidate, name) != degree for name, degree in fixed.items() if name != "data"):
            continue
        if (reason := rejection_reason(candidate, work, ranks=costs.ranks)) is not None:
            rejected.append((candidate, reason))
            continue
        for data in _data_degrees(costs, candidate, fixed):
            degrees = replace(candidate, data=data)
            if (reason := rejection_reason(degrees, work, ranks=costs.ranks)) is not None:
                rejected.append((degrees, reason))
                continue
            time = costs.job(degrees)
            legal.append(DegreesEstimate(degrees, time.whole, time.exchange, alone / time.whole if time.whole else 1.0))
    if not legal:
        reason = rejection_reason(ParallelDegrees(**fixed), work, ranks=costs.ranks)
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
