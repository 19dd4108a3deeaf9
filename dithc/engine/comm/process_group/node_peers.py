"""Ranks of a group on this node: their shared memory and the state of their processes."""

import os
import time
from collections.abc import Sequence

from dithc.core.logging import get_logger
from dithc.core.processes import process_fields
from dithc.engine import native
from dithc.engine.comm.environment import node_name
from dithc.engine.comm.mpi import MpiCommunicator
from dithc.engine.comm.process_group.hierarchical import ACROSS_SLOT_BYTES, InterNodeGroup, NodeGroup
from dithc.engine.comm.process_group.islands import find_islands
from dithc.engine.comm.process_group.shm_collectives import MAX_RANKS, SLOT_BYTES, ShmCollectives, rank_gone

log = get_logger(__name__)


def node_of(channel: MpiCommunicator, ranks: Sequence[int] | None = None) -> NodeGroup | None:
    """Create this node's shared memory, and channels between ranks of the same index on all nodes; collective.

    `ranks` are the numbers in the world, used in messages; None if the group is the world.
    """
    names = channel.all_gather_object(node_name())
    local_ranks = [rank for rank, name in enumerate(names) if name == names[channel.rank]]
    nodes = {name: names.count(name) for name in names}
    cause = None
    if native.library() is None:
        cause = "the C kernels are off"
    elif len(set(nodes.values())) > 1:
        cause = "the nodes have different numbers of ranks"
    elif len(local_ranks) > MAX_RANKS:
        cause = f"more than {MAX_RANKS} ranks on a node"
    reasons = [reason for reason in channel.all_gather_object(cause) if reason]
    if reasons:
        log.warning("dithc-mpi: %s; using MPI's own all-reduce", reasons[0])
        return None
    local_rank = local_ranks.index(channel.rank)
    islands = find_islands(channel, list(nodes), is_first=local_rank == 0)
    node_names = [name for peers in zip(*islands, strict=True) for name in peers]
    number = node_names.index(names[channel.rank])
    index, island = divmod(number, len(islands))
    local = channel.split(number, key=local_rank)
    remote = []
    for color, key, size in ((island, index, len(islands[0])), (index, island, len(islands))):
        if size > 1:
            peers = [channel.split(local_rank * len(names) + color, key=key) for _ in range(2)]
            remote.append(InterNodeGroup(key, *peers))
    exchange = ShmCollectives(
        rank=local.rank,
        names=[_name(rank, ranks, size=channel.size) for rank in local_ranks],
        broadcast=local.broadcast_object,
        barrier=local.wait_for_all,
        slot_bytes=ACROSS_SLOT_BYTES if remote else SLOT_BYTES,
    )
    by_node = [[rank for rank, name in enumerate(names) if name == node] for node in node_names]
    return NodeGroup(exchange, by_node, remote)


class NodePeers:
    """Processes of the ranks of a group on this node."""

    def __init__(self, channel: MpiCommunicator, ranks: Sequence[int] | None = None) -> None:
        """Gather host and process number of the ranks; `ranks` are their numbers in the world (None: equal)."""
        self._ranks = ranks
        identity = (node_name(), os.getpid())
        processes = channel.all_gather_object(identity)
        self._processes = {
            rank: pid for rank, (node, pid) in enumerate(processes) if (node, pid) != identity and node == identity[0]
        }
        self._hosts = [node.partition(" ")[0] for node, _ in processes]
        self._stopped_since: dict[int, float] = {}

    def check(self, *, stopped_seconds: float | None = None) -> None:
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
            if stopped_seconds is not None and self._stopped_duration(rank) > stopped_seconds:
                raise rank_gone(f"{self.describe(rank)} for {stopped_seconds:g} s, while other ranks wait for it")

    def _stopped_duration(self, rank: int) -> float:
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
