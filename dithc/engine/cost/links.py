"""Closed-form times of collectives on described links: LogGP between shared network cards, and memory inside a node.

Every function assumes ranks that start together; `events.py` determines the start times.

R ranks, N nodes, P ranks per node, L latency, o overhead per message, g gap between messages, G seconds per byte.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from dithc.core.logging import user_error
from dithc.engine.hardware import Machine

Collective = Literal["ring", "hierarchical"]
COLLECTIVES: tuple[Collective, ...] = ("ring", "hierarchical")
Wire = Literal["fp32", "bf16"]

# Constants of dithc.engine.comm: bytes of a chunk on the wire within a node, and across nodes; chunks in flight between nodes.
CHUNK_BYTES, ACROSS_CHUNK_BYTES, IN_FLIGHT = 512 << 10, 2 << 20, 3
FP32_BYTES, WIRE_BYTES = 4, {"fp32": 4, "bf16": 2}
NANO = 1e-9
ASSUMED_LATENCY, ASSUMED_BANDWIDTH, ASSUMED_MEMORY_BANDWIDTH = 30e-6, 1e9, 8e9


@dataclass(frozen=True, kw_only=True)
class Links:
    """Fields of the Network of `dithc.engine.hardware` in seconds and seconds per byte; zero is a free link.

    Attributes:
        latency, overhead, gap, byte: L, o, g and G of a card, per direction.
        core_byte: seconds per byte that a communication core sends, receives and sums.
        memory_byte: seconds per byte of a communication core in shared memory.
        memory_latency: seconds until another core can read a write.
        cards: network cards per node.
    """

    latency: float = 0.0
    overhead: float = 0.0
    gap: float = 0.0
    byte: float = 0.0
    core_byte: float = 0.0
    memory_byte: float = 0.0
    memory_latency: float = 0.0
    cards: int = 1

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the links of a machine description."""
        network = machine.network
        if network is None:
            raise user_error(
                f"the machine {machine.model_name!r} has no network to simulate",
                got="no section `network`",
                expected="its keys as in profiles/machines/lx2.yaml: cards_per_node, bandwidth, latency_ns, ...",
                fix="add the section `network` to the description",
            )
        return cls(
            latency=network.latency_ns * NANO,
            overhead=network.overhead_ns * NANO,
            gap=network.gap_ns * NANO,
            byte=1 / network.bandwidth,
            core_byte=1 / network.core_bandwidth,
            memory_byte=1 / network.memory_bandwidth,
            memory_latency=network.memory_latency_ns * NANO,
            cards=network.cards_per_node,
        )

    @classmethod
    def assumed(cls, bandwidth: float = ASSUMED_BANDWIDTH) -> Self:
        """Return links of a known or assumed bandwidth in bytes per second, with an assumed latency and memory."""
        return cls(latency=ASSUMED_LATENCY, byte=1 / bandwidth, memory_byte=1 / ASSUMED_MEMORY_BANDWIDTH)

    def sharing(self, streams: int) -> float:
        """Return the slowdown of a byte with this many concurrent senders on a node."""
        return max(1.0, streams / self.cards)

    def message(self, size: float, *, streams: int = 1) -> float:
        """Return seconds of a message of `size` bytes between nodes, from the send call to the end of the receive."""
        return self.latency + 2 * self.overhead + size * (self.byte * self.sharing(streams) + self.core_byte)

    def through_memory(self, size: float) -> float:
        """Return seconds of a message inside a node: one write, one read."""
        return self.memory_latency + 2 * size * self.memory_byte


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """N nodes of P ranks; ranks of a node exchange through memory if `shares_memory`, else through their cards."""

    nodes: int
    ranks_per_node: int
    shares_memory: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks R."""
        return self.nodes * self.ranks_per_node


def all_reduce_seconds(size: float, *, collective: Collective, layout: RankLayout, links: Links, wire: Wire) -> float:
    """Return seconds until every rank has the sum of `size` bytes of fp32.

    `wire` applies to `hierarchical`, which follows dithc.engine.comm; ring sends fp32 over all ranks.
    """
    if layout.ranks == 1 or size <= 0:
        return 0.0
    if collective == "hierarchical":
        return _hierarchical(size, layout=layout, links=links, wire=wire)
    return _ring(size, layout, links)


def _inside(size: float, *, streams: int, layout: RankLayout, links: Links) -> float:
    return links.through_memory(size) if layout.shares_memory else links.message(size, streams=streams)


def _ring(size: float, layout: RankLayout, links: Links) -> float:
    """2 (R - 1) steps of a rank's share; in rank order one message per node crosses node boundaries."""
    ranks, inner = layout.ranks, layout.ranks_per_node
    streams = 1 if layout.shares_memory else inner
    steps = [links.message(size / ranks, streams=streams)] if layout.nodes > 1 else []
    if inner > 1:
        steps.append(_inside(size / ranks, streams=streams, layout=layout, links=links))
    return 2 * (ranks - 1) * max(max(steps), links.gap)


def _hierarchical(size: float, *, layout: RankLayout, links: Links, wire: Wire) -> float:
    """Pipeline of chunks through put, combine, cross, get.

    The first chunk takes all four times, each further chunk the time of the slowest resource. The core copies, sums and
    serves messages; the cards carry at most IN_FLIGHT chunks. All chunks have the average size.
    """
    on_wire = size * WIRE_BYTES[wire] / FP32_BYTES
    chunks = math.ceil(on_wire / (CHUNK_BYTES if layout.nodes == 1 else ACROSS_CHUNK_BYTES))
    chunk = on_wire / chunks
    # put and get copy a chunk between the gradients (fp32) and the segment (wire); combine reads every rank's part of
    # the chunk.
    copying = 2 * (chunk + size / chunks) / 2 * links.memory_byte + chunk * links.memory_byte + 3 * links.memory_latency
    if layout.nodes == 1:
        return chunks * copying
    piece = chunk / layout.ranks_per_node
    crossing = _across_nodes(piece, layout, links)
    serving = _across_nodes(piece, layout, replace(links, latency=0.0, gap=0.0, byte=0.0))
    carrying = _across_nodes(piece, layout, replace(links, latency=0.0, overhead=0.0, core_byte=0.0))
    return copying + crossing + (chunks - 1) * max(copying + serving, carrying, crossing / IN_FLIGHT)


def _across_nodes(size: float, layout: RankLayout, links: Links) -> float:
    """All ranks of a node sum `size` bytes each with the same ranks of other nodes: all-to-all, then all-gather.

    All messages of the all-to-all are posted together, so that their latencies overlap. The all-gather doubles the data
    of each node per step.
    """
    nodes = layout.nodes
    message = links.latency + 2 * links.overhead
    transfer = (nodes - 1) / nodes * size * (links.byte * links.sharing(layout.ranks_per_node) + links.core_byte)
    to_all = message + (nodes - 2) * max(2 * links.overhead, links.gap) + transfer
    return to_all + math.ceil(math.log2(nodes)) * message + transfer
