"""Predicted seconds of a network call and of a sampling run for degrees: closed-form functions of rates.

n rows of a batch on a rank, t tokens of a rank, T of an image, D width, L blocks; s bytes of a number; U, R ranks of
Ulysses and ring; F FLOP/s of a rank, B bytes/s.
Included: products and attention, shared by tokens, and slower for few tokens; per-row work, per rank or shared in
memory; all communication; the decoder. Not included: sampler arithmetic and writing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd
from typing import Any

import numpy as np

from dithc.engine.hardware import Machine
from dithc.sample.parallel.degrees import ParallelDegrees, SamplingWork

FP32_BYTES, SECONDS_PER_NS = 4, 1e-9
# fp32 values that are read or written per value that a ring combines; a copy reads one and writes one.
COMBINE_PASSES, COPY_PASSES = 7, 2
# Values per token, in units of D, that are copied in addition to the communication of Ulysses and ring.
ULYSSES_COPIES, RING_COPIES = 8, 2


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Cost of an exchange with all ranks of a node active: latency in seconds, bandwidth in bytes/s sent and received."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    """Rates of ranks and links."""

    flops: float  # F, with many tokens
    # total tokens of all rows at which products reach half of F; attention does not depend on it
    half_tokens: float = 0.0
    # links within and between nodes; None if unknown
    inside: LinkModel | None
    between: LinkModel | None
    copy_rate: float  # bytes per second of a rank's copies in memory
    barrier_seconds: float = 0.0  # seconds of a barrier within a node
    # extra seconds per block if attention is a separate call, as with messages; half of it per further ring step
    split_call_seconds: float = 0.0
    hidden: float = 1.0  # share of a message hidden behind computation: 1 with a core for communication threads
    call: float = 0.0  # seconds of a network call outside of blocks
    decoding: float = 0.0  # seconds per image and rank
    # active ranks per node, ascending, and the relative computing time, interpolated; empty for no effect
    crowding: Sequence[tuple[int, float]] = ()
    source: str = ""

    def crowded(self, ranks: int) -> float:
        """Return the computing time with `ranks` active ranks per node, relative to all."""
        if not self.crowding:
            return 1.0
        counts, seconds = zip(*self.crowding, strict=True)
        return float(np.interp(ranks, counts, seconds))


# Rates for checks of validity rather than time: a rank with some cores of a current server.
NOMINAL = MachineRates(
    flops=1e12,
    half_tokens=16,
    inside=LinkModel(latency=20e-6, bandwidth=4e9),
    between=LinkModel(latency=50e-6, bandwidth=2e9),
    copy_rate=10e9,
    barrier_seconds=10e-6,
    split_call_seconds=250e-6,
    source="assumed: a current server",
)

BARRIER_SECONDS, SPLIT_CALL_SECONDS = 20e-6, 500e-6  # assumed if only a description is available


def rates_from_description(
    machine: Machine, *, ranks_per_node: int, bandwidth: float | None = None, **measured: Any
) -> MachineRates:
    """Return the rates of a described network; `measured` sets rates that `machine.network` lacks.

    `bandwidth` overrides the bandwidth of a rank's messages between nodes; `ranks_per_node` share its cards.
    """
    network = machine.network
    assert network is not None, "a description with `network`"
    ranks_per_card = max(1.0, ranks_per_node / network.cards_per_node)
    seconds_per_byte = ranks_per_card / network.bandwidth + 1 / network.core_bandwidth
    latency = (network.latency_ns + 2 * network.overhead_ns) * SECONDS_PER_NS
    memory_bandwidth = network.memory_bandwidth / COPY_PASSES  # a message is written once and read once
    described: dict[str, Any] = {
        "inside": LinkModel(latency=network.memory_latency_ns * SECONDS_PER_NS, bandwidth=memory_bandwidth),
        "between": LinkModel(latency=latency, bandwidth=bandwidth or 1 / seconds_per_byte),
        "copy_rate": network.rank_memory_bandwidth or network.memory_bandwidth,
        "barrier_seconds": BARRIER_SECONDS,
        "split_call_seconds": SPLIT_CALL_SECONDS,
        "source": f"described: {machine.model_name}",
    }
    return MachineRates(**(described | measured))


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of a call: computing time of a rank, and communication time in addition."""

    computing: float
    exchange: float

    @property
    def whole(self) -> float:
        return self.computing + self.exchange


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Predicted seconds of some work on equal ranks."""

    work: SamplingWork
    rates: MachineRates
    ranks: int
    ranks_per_node: int

    def call(self, degrees: ParallelDegrees, rows: int) -> PredictedTime:
        """Return the seconds of a network call with these rows, of both branches and all windows."""
        work, rates = self.work, self.rates
        if work.heads == 0:
            return PredictedTime(0.0, 0.0)
        n = -(-rows // degrees.rows) if rows >= degrees.rows else rows
        t = -(-work.tokens // degrees.tokens)
        share = t / work.tokens
        attention = n * share * work.attention_flops / rates.flops
        products = n * share * work.linear_flops / rates.flops * (1 + rates.half_tokens / (n * t))
        computing = products + attention + n * work.uncut_flops / degrees.shared / rates.flops
        exchange = self._branch_seconds(degrees, n, rows) + self._token_seconds(degrees, n, t, attention)
        return PredictedTime(computing + rates.call, exchange)

    def job(self, degrees: ParallelDegrees) -> PredictedTime:
        """Return the seconds until the busiest group has generated its shards."""
        groups = min(self.ranks // degrees.size, len(self.work.shards))
        crowded = self.rates.crowded(min(self.ranks_per_node, groups * degrees.size))
        by_size = {images: self._shard(degrees, images) for images in set(self.work.shards)}
        busiest = PredictedTime(0.0, 0.0)
        for shards in _distributions(tuple(self.work.shards), groups):
            computing = crowded * sum(count * by_size[images].computing for images, count in shards.items())
            exchange = sum(count * by_size[images].exchange for images, count in shards.items())
            busiest = max(busiest, PredictedTime(computing, exchange), key=lambda seconds: seconds.whole)
        return busiest

    @cached_property
    def alone(self) -> float:
        """Seconds on one rank while the other ranks are idle."""
        whole = sum(
            self._shard(ParallelDegrees(), images).whole * count for images, count in Counter(self.work.shards).items()
        )
        return self.rates.crowded(1) * whole

    def has_links(self, degrees: ParallelDegrees) -> bool:
        spans = {degrees.tokens, degrees.rows * degrees.tokens} - {1}
        return all((self.rates.inside if self._is_inside(span) else self.rates.between) is not None for span in spans)

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
            members = degrees.rows * degrees.tokens  # complete images are distributed, or rows of each image
            decoded = size / min(work.decoders, members) if work.decoders > 1 else -(-size // members)
            computing += repeats * decoded * self.rates.decoding
        return PredictedTime(computing, exchange)

    def _is_inside(self, span: int) -> bool:
        """Return whether consecutive groups of this size always stay within a node."""
        return self.ranks <= self.ranks_per_node or self.ranks_per_node % span == 0

    def _link(self, span: int) -> LinkModel:
        link = self.rates.inside if self._is_inside(span) else self.rates.between
        assert link is not None, "call `has_links` before"
        return link

    def _branch_seconds(self, degrees: ParallelDegrees, n: int, rows: int) -> float:
        """Return the seconds to exchange outputs in fp32, once per call."""
        if degrees.rows == 1 or rows < degrees.rows:
            return 0.0
        whole = degrees.rows * n * self.work.tokens * self.work.numbers * FP32_BYTES
        return self._gather_seconds(degrees.rows, whole, span=degrees.rows * degrees.tokens)

    def _gather_seconds(self, members: int, whole: float, *, span: int) -> float:
        """Return the seconds to gather a tensor of this number of bytes on all ranks, in memory or by messages."""
        part = whole / members
        if self.work.in_memory and self._is_inside(span):
            return self.rates.barrier_seconds + (part + whole) / self.rates.copy_rate
        return self._link(span).seconds(whole - part)

    def _token_seconds(self, degrees: ParallelDegrees, n: int, t: int, attention: float) -> float:
        """Return the exchange seconds of ranks that share tokens, per block and for the final patches."""
        work, rates = self.work, self.rates
        if degrees.tokens == 1:
            return 0.0
        link = self._link(degrees.tokens)
        strip = n * t * work.width * work.number_bytes  # bytes of (n, t, D)
        whole = degrees.tokens * n * t * work.numbers * work.number_bytes
        ends = self._gather_seconds(degrees.tokens, whole, span=degrees.tokens)
        if degrees.shared > 1:
            return ends + work.depth * (2 * strip / rates.copy_rate + rates.barrier_seconds)
        block = rates.split_call_seconds
        if degrees.ulysses > 1:
            block += self._all_to_all_seconds(degrees.ulysses, strip) + ULYSSES_COPIES * strip / rates.copy_rate
        if degrees.ring > 1:
            hop = link.seconds(2 * strip)
            exposed = hop - rates.hidden * min(hop, attention / (work.depth * degrees.ring))
            combine = COMBINE_PASSES / COPY_PASSES * n * t * work.width * FP32_BYTES / rates.copy_rate
            block += (degrees.ring - 1) * (exposed + combine + rates.split_call_seconds / 2)
            block += RING_COPIES * strip / rates.copy_rate
        return ends + work.depth * block

    def _all_to_all_seconds(self, ulysses: int, strip: float) -> float:
        """Return the seconds of two all-to-all exchanges: queries, keys and values by heads, and mixed values back."""
        link = self._link(ulysses)
        same_node = ulysses if self._is_inside(ulysses) else gcd(ulysses, self.ranks_per_node)  # ranks of the same node
        inside = 4 * strip * (same_node - 1) / ulysses / (self.rates.inside or link).bandwidth
        between = 4 * strip * (ulysses - same_node) / ulysses / link.bandwidth
        return 2 * link.latency + inside + between


@cache
def _distributions(shards: tuple[int, ...], groups: int) -> Sequence[Counter[int]]:
    """Return the distinct distributions of shards to groups, by images per shard."""
    distributions = {tuple(sorted(shards[group::groups])) for group in range(min(groups, len(shards)))}
    return [Counter(part) for part in distributions]
