"""Islands: groups of nodes with fast links among each other and several times slower links to other groups."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dithc.core.logging import get_logger
from dithc.core.units import GIGA, KIB, MIB

if TYPE_CHECKING:  # the import starts MPI
    from dithc.engine.comm.mpi import MpiCommunicator

log = get_logger(__name__)

# Bytes per message with many and with up to 16 nodes: long compared with the latency, and seconds for 1,024 nodes.
MESSAGE_BYTES, MESSAGES = (64 * KIB, MIB), 4
# Islands change the order of sums, hence the bits. Rates of equal links must not create them.
MIN_RATIO, MIN_NODES = 3.0, 4

_measured: dict[tuple[str, ...], list[list[str]]] = {}


def find_islands(channel: "MpiCommunicator", nodes: Sequence[str], *, is_first: bool) -> list[list[str]]:
    """Return the nodes of each island, according to the measured rates between the nodes; collective.

    Args:
        channel: ranks of a group.
        nodes: names of its nodes, in the order of their first ranks.
        is_first: whether this rank is the first one of its node.

    Returns: islands of equal size. One island, if fewer than `MIN_NODES` nodes or no clear difference between links.
    """
    if len(nodes) < MIN_NODES:
        return [list(nodes)]
    known = channel.all_gather_object(_measured.get(tuple(nodes)))
    if all(known):
        return list(known[0])
    firsts = channel.split(int(is_first), key=channel.rank)
    groups: list[list[int]] = []
    if is_first:
        message_bytes = max(MESSAGE_BYTES[0], MESSAGE_BYTES[1] * 16 // max(16, len(nodes)))
        rates = firsts.all_gather_object(measure_rates(firsts, message_bytes=message_bytes, messages=MESSAGES))
        groups = group_nodes(rates) if channel.rank == 0 else []
    groups = channel.broadcast_object(groups)
    return _measured.setdefault(tuple(nodes), [[nodes[i] for i in group] for group in groups])


def measure_rates(channel: "MpiCommunicator", *, message_bytes: int, messages: int) -> list[float]:
    """Return bytes per second between this rank and each rank, 0 for itself; collective.

    All pairs of a round exchange at the same time, so that links which several pairs share are slower, as in a sum. The
    fastest of `messages` in two tournaments counts, so that other processes do not lower the rate.
    """
    sent, received = np.zeros(message_bytes, np.uint8), np.zeros(message_bytes, np.uint8)
    rates = [0.0] * channel.size
    for peer in [*_opponents(channel.rank, channel.size)] * 2:
        channel.wait_for_all()
        if peer is None:
            continue
        for _ in range(messages):
            start = time.perf_counter()
            for size in (
                message_bytes,
                1,
            ):  # the byte is sent when the message has arrived: a buffered send ends earlier
                requests = [
                    channel.receive(received[:size], source=peer, tag=0),
                    channel.send(sent[:size], dest=peer, tag=0),
                ]
                while requests:
                    requests = [request for request in requests if not request.done()]
                    os.sched_yield()
            rates[peer] = max(rates[peer], 2 * message_bytes / (time.perf_counter() - start))
    return rates


def group_nodes(rates: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return islands of nodes: rates[i][j] between nodes i and j, as node i measured it.

    The largest ratio between consecutive rates separates fast links from slow links. Nodes form islands if all links of
    an island are fast, all others slow, and all islands have the same size.
    """
    count = len(rates)
    pairs = {(i, j): min(rates[i][j], rates[j][i]) for i in range(count) for j in range(i)}
    ordered = sorted(pairs.values())
    steps = [(above / below, above) for below, above in pairwise(ordered)]
    ratio, slowest_fast = max(steps)
    peers = [[j for j in range(count) if j == i or pairs[max(i, j), min(i, j)] >= slowest_fast] for i in range(count)]
    islands = [list(island) for island in dict.fromkeys(map(tuple, peers))]
    are_equal = sum(map(len, islands)) == count and len({len(island) for island in islands}) == 1
    if ratio < MIN_RATIO or not are_equal or len(islands[0]) == 1:
        return [list(range(count))]
    log.info(
        "network: %d islands of %d nodes exchange once each; at least %.3g GB/s inside, at most %.3g GB/s between them",
        len(islands),
        len(islands[0]),
        slowest_fast / GIGA,
        slowest_fast / ratio / GIGA,
    )
    return islands


def _opponents(player: int, count: int) -> Iterator[int | None]:
    """Yield the opponent of a player in each round of a tournament in which all pairs meet once; None for a pause."""
    last = count - 1 + count % 2  # with an odd count, this player does not exist
    for turn in range(last):
        opponent = turn if player == last else (2 * turn - player) % last
        opponent = last if opponent == player else opponent
        yield opponent if opponent < count else None
