"""Ranks of a group on this node: their shared memory and the state of their processes."""

import os
import time
from collections.abc import Sequence

from dithc.core.logging import get_logger
from dithc.engine import native
from dithc.engine.comm.environment import node_name, process_fields
from dithc.engine.comm.mpi import MpiCommunicator
from dithc.engine.comm.process_group.hierarchical import ACROSS_SLOT_BYTES, InterNodeGroup, NodeGroup
from dithc.engine.comm.process_group.shm_collectives import MOST_RANKS, SLOT_BYTES, ShmCollectives, rank_gone

log = get_logger(__name__)


def node_of(channel: MpiCommunicator, ranks: Sequence[int] | None = None) -> NodeGroup | None:
    """Create this node's shared memory, and channels between ranks of the same index on all nodes; collective.

    `ranks` are the numbers in the world, used in messages; None if the group is the world.
    """
    names = channel.all_gather_object(node_name())
    mine = [rank for rank, name in enumerate(names) if name == names[channel.rank]]
    nodes = {name: names.count(name) for name in names}
    obstacle = None
    if native.library() is None:
        obstacle = "the C kernels are off"
    elif len(set(nodes.values())) > 1:
        obstacle = "the nodes have different numbers of ranks"
    elif len(mine) > MOST_RANKS:
        obstacle = f"more than {MOST_RANKS} ranks on a node"
    reasons = [reason for reason in channel.all_gather_object(obstacle) if reason]
    if reasons:
        log.warning("dithc-mpi: %s; using MPI's own all-reduce", reasons[0])
        return None
    in_order = list(dict.fromkeys(names))  # nodes by their first rank
    number, place = in_order.index(names[channel.rank]), mine.index(channel.rank)
    inside = channel.split(number, key=place)
    across = None
    if len(nodes) > 1:
        across = InterNodeGroup(number, *(channel.split(place, key=number) for _ in range(2)))
    exchange = ShmCollectives(
        rank=inside.rank,
        names=[_name(rank, ranks, size=channel.size) for rank in mine],
        broadcast=inside.broadcast_object,
        barrier=inside.wait_for_all,
        slot_bytes=SLOT_BYTES if across is None else ACROSS_SLOT_BYTES,
    )
    by_node = [[rank for rank, name in enumerate(names) if name == node] for node in in_order]
    return NodeGroup(exchange, by_node, across)


class NodePeers:
    """Processes of the ranks of a group on this node."""

    def __init__(self, channel: MpiCommunicator, ranks: Sequence[int] | None = None) -> None:
        """Gather host and process number of the ranks; `ranks` are their numbers in the world (None: equal)."""
        self._ranks = ranks
        here = (node_name(), os.getpid())
        everybody = channel.all_gather_object(here)
        self._processes = {
            rank: pid for rank, (node, pid) in enumerate(everybody) if (node, pid) != here and node == here[0]
        }
        self._hosts = [node.partition(" ")[0] for node, _ in everybody]
        self._stopped_since: dict[int, float] = {}

    def look(self, *, stopped_seconds: float | None = None) -> None:
        """Raise UserError if a process has ended, or was stopped by a signal for `stopped_seconds`."""
        for rank, pid in self._processes.items():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                raise rank_gone(
                    f"{_name(rank, self._ranks, size=len(self._hosts))} (process {pid}) has ended"
                ) from None
            except PermissionError:
                continue
            if stopped_seconds is not None and self._stopped_for(rank) > stopped_seconds:
                raise rank_gone(f"{self.describe(rank)} for {stopped_seconds:g} s, while other ranks wait for it")

    def _stopped_for(self, rank: int) -> float:
        """Return the seconds since a rank was first found stopped."""
        if _state(self._processes[rank]) != "T":
            self._stopped_since.pop(rank, None)
            return 0.0
        return time.monotonic() - self._stopped_since.setdefault(rank, time.monotonic())

    def describe(self, rank: int) -> str:
        number = self._ranks[rank] if self._ranks else rank
        if (pid := self._processes.get(rank)) is None:
            return f"rank {number} on {self._hosts[rank]}"
        return f"rank {number} (process {pid}{', stopped by a signal' if _state(pid) in 'Tt' else ''})"


def _name(rank: int, ranks: Sequence[int] | None, *, size: int) -> str:
    return f"rank {ranks[rank]}" if ranks else f"rank {rank} of {size}"


def _state(pid: int) -> str:
    return (process_fields(pid) or "?")[0]
