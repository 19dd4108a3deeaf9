"""Reductions and gathers over nodes with several ranks: shared memory within a node, MPI between nodes.

R is the number of ranks per node and M the number of nodes. Ranks with the same index on their nodes exchange with each
other, so that every rank of a node sends its share of the data. Arrays are processed in chunks, several of which are in
flight. Values are reduced over the ranks of a node in the order of their indices, then over nodes in order; each time
in fp32, from and to the wire type. An element's sum therefore has the same bits for every operation and chunk.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dithc.engine.comm.process_group.progress_thread import Operation
from dithc.engine.comm.process_group.shm_collectives import ChunkLayout, Combination, ShmCollectives

if TYPE_CHECKING:  # the import starts MPI
    from dithc.engine.comm.mpi import Buffer, MpiCommunicator, MpiRequest

# Number of chunks in flight between nodes: enough to keep the network busy while others are summed.
IN_FLIGHT = 3
# Chunk size across several nodes: messages must be long compared with the network latency of some microseconds.
ACROSS_SLOT_BYTES = 2 << 20

# Step of a chunk: receives its number and the nanoseconds it may wait; returns whether it completed.
Step = Callable[[int, int], bool]


@dataclass(frozen=True)
class InterNodeGroup:
    """Ranks with the same index on all nodes: two channels over them in the order of nodes.

    Each carries one type of step in the order of chunks; on a single channel the steps would interleave differently on
    every node.
    """

    node: int
    sums: "MpiCommunicator"
    gathers: "MpiCommunicator"


@dataclass(frozen=True)
class NodeGroup:
    """Placement of the ranks of a group on nodes."""

    exchange: ShmCollectives
    ranks: Sequence[Sequence[int]]  # for each node by index
    remote: InterNodeGroup | None  # None with one node


class HierarchicalCollectives:
    """Operations on dense 1D tensors; one after the other, the same on all ranks."""

    def __init__(self, node: NodeGroup) -> None:
        self._node = node
        self._free_buffers: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def all_reduce(self, x: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        exchange, remote = self._node.exchange, self._node.remote
        if remote is None:
            yield from exchange.whole("all_reduce", x, x, wire=wire, op=op, scale=scale)
            return
        chunks = x.split(exchange.ranks * exchange.piece_elements(wire)) if x.numel() else ()  # type: ignore[no-untyped-call]
        if exchange.ranks == 1 and wire is x.dtype and scale == 1:  # a single rank per node sends directly from x to x
            steps = self._remote_steps(remote, dict(enumerate(chunks)), op, wire)
            yield from _pipeline(len(chunks), steps, blocking=())
            return
        cuts = {count: exchange.cut(count, wire) for count in {chunk.numel() for chunk in chunks}}
        pieces = [cuts[chunk.numel()] for chunk in chunks]
        first = exchange.reserve(len(chunks))
        values: dict[int, Tensor] = {}
        options: dict[str, Any] = {"wire": wire, "op": op, "scale": scale}

        def put(i: int, wait_ns: int) -> bool:
            return exchange.put(first + i, pieces[i], chunks[i], wire=wire, wait_ns=wait_ns)

        def combine(i: int, wait_ns: int) -> bool:
            total = exchange.combine(first + i, pieces[i], chunks[i], **options, out=None, wait_ns=wait_ns)
            if total is not None:
                values[i] = total
            return total is not None

        def publish(i: int, _: int) -> bool:
            exchange.publish(first + i)
            del values[i]
            return True

        def get(i: int, wait_ns: int) -> bool:
            return exchange.get(first + i, pieces[i], chunks[i], wire=wire, wait_ns=wait_ns)

        steps = self._remote_steps(remote, values, op, wire)
        yield from _pipeline(len(chunks), [put, combine, *steps, publish, get], blocking=(put, combine, get))

    def _remote_steps(
        self, remote: InterNodeGroup, values: dict[int, Tensor], op: Combination, wire: torch.dtype
    ) -> list[Step]:
        """Return the steps that reduce values[i], a piece already reduced within this node, over nodes."""
        pending: deque[tuple[MpiRequest, Tensor, Tensor]] = deque()
        gathers: deque[MpiRequest] = deque()

        def send(i: int, _: int) -> bool:
            """Send the other nodes their shares of the piece, and receive this rank's share."""
            if len(pending) + len(gathers) >= IN_FLIGHT:
                return False
            counts = _shares(values[i].numel(), remote.sums.size)
            share = counts[remote.node]
            buffer = self._acquire_buffer(remote.sums.size * share, wire)
            request = remote.sums.exchange_parts(_array(values[i]), counts, _array(buffer), [share] * remote.sums.size)
            pending.append((request, buffer, values[i]))
            return True

        def reduce(_: int, __: int) -> bool:
            if not pending[0][0].done():
                return False
            buffer, piece = pending.popleft()[1:]
            counts = _shares(piece.numel(), remote.sums.size)
            share = piece[sum(counts[: remote.node]) :][: counts[remote.node]]
            parts = [*buffer.view(remote.sums.size, share.numel())]
            parts[remote.node] = share
            self._node.exchange.fold(parts, op, share)
            self._release_buffer(buffer)
            gathers.append(remote.gathers.all_gather_parts(_array(piece), counts))
            return True

        def finish(_: int, __: int) -> bool:
            return gathers[0].done() and gathers.popleft() is not None

        return [send, reduce, finish]

    def reduce_scatter(self, x: Tensor, out: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        """Reduce part r of x into out of rank r; out may be this part."""
        exchange, remote, ranks = self._node.exchange, self._node.remote, self._node.ranks
        if remote is None:
            yield from exchange.whole("reduce_scatter", x, out, wire=wire, op=op, scale=scale)
            return
        count, nodes = out.numel(), len(ranks)
        length = exchange.piece_elements(wire)
        starts = range(0, count, length)
        first = exchange.reserve(len(starts) * nodes)
        stages: dict[int, Tensor] = {}
        options: dict[str, Any] = {"wire": wire, "op": op, "scale": scale}

        def width(i: int) -> int:
            return min(length, count - starts[i])

        def pieces(step: int) -> tuple[int, ChunkLayout]:
            chunk, node = divmod(step, nodes)
            return starts[chunk], ChunkLayout([rank * count for rank in ranks[node]], width(chunk))

        def put(step: int, wait_ns: int) -> bool:
            start, cut = pieces(step)
            return exchange.put(first + step, cut, x[start:], wire=wire, wait_ns=wait_ns)

        def combine(step: int, wait_ns: int) -> bool:
            start, cut = pieces(step)
            chunk, node = divmod(step, nodes)
            if chunk not in stages:
                if len(stages) >= IN_FLIGHT:
                    return False
                stages[chunk] = self._acquire_buffer(nodes * width(chunk), wire)
            target = stages[chunk][node * width(chunk) :]
            piece = first + step, cut, x[start:]
            return exchange.combine(*piece, **options, out=target, wait_ns=wait_ns) is not None

        steps = self._remote_shard_steps(remote, stages, out.split(length), op)  # type: ignore[no-untyped-call]
        yield from _pipeline(len(starts) * nodes, [put, combine, *steps], blocking=(put, combine))

    def _remote_shard_steps(
        self, remote: InterNodeGroup, stages: dict[int, Tensor], targets: Sequence[Tensor], op: Combination
    ) -> list[Step]:
        """Return the steps that reduce stages[i], a chunk of each node's shard, over nodes into targets[i]."""
        nodes = remote.sums.size
        pending: deque[tuple[MpiRequest, Tensor]] = deque()

        def send(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node == nodes - 1:
                stage, counts = stages[chunk], [targets[chunk].numel()] * nodes
                buffer = self._acquire_buffer(stage.numel(), stage.dtype)
                pending.append((remote.sums.exchange_parts(_array(stage), counts, _array(buffer), counts), buffer))
            return True

        def reduce(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node < nodes - 1:
                return True
            if not pending[0][0].done():
                return False
            buffer, target = pending.popleft()[1], targets[chunk]
            parts = [*buffer.view(nodes, target.numel())]
            parts[remote.node] = local = stages[chunk].view(nodes, target.numel())[remote.node]
            total = target if target.dtype is buffer.dtype else local
            self._node.exchange.fold(parts, op, total)
            if total is not target:
                target.copy_(total)
            self._release_buffer(buffer)
            self._release_buffer(stages.pop(chunk))
            return True

        return [send, reduce]

    def all_gather(self, x: Tensor, out: Tensor, *, wire: torch.dtype = torch.float32) -> Operation:
        """Gather x of each rank into out, in rank order, rounded to `wire`; x may be its part of out.

        With fp32 on the wire the bits are copied unchanged, whatever their type.
        """
        exchange, remote, ranks = self._node.exchange, self._node.remote, self._node.ranks
        count, nodes = x.numel(), len(ranks)
        if remote is None:
            local = out[ranks[0][exchange.rank] * count :][:count]
            if wire is torch.float32 and local.data_ptr() != x.data_ptr():
                local.copy_(x)
            yield from exchange.whole("all_gather", x, out, wire=wire)
            return
        length = exchange.piece_elements(wire)
        starts = range(0, count, length)
        first = exchange.reserve(len(starts) * nodes)
        stages: dict[int, Tensor] = {}

        def width(i: int) -> int:
            return min(length, count - starts[i])

        def offer(step: int, wait_ns: int) -> bool:
            chunk, node = divmod(step, nodes)
            source = stages[chunk][node * width(chunk) :]
            cut = ChunkLayout([0] * exchange.ranks, width(chunk))
            return exchange.offer(first + step, cut, source, wait_ns=wait_ns)

        def get(step: int, wait_ns: int) -> bool:
            chunk, node = divmod(step, nodes)
            cut, target = ChunkLayout([rank * count for rank in ranks[node]], width(chunk)), out[starts[chunk] :]
            is_complete = exchange.get(first + step, cut, target, wire=wire, wait_ns=wait_ns)
            if is_complete and node == nodes - 1:
                self._release_buffer(stages.pop(chunk))
            return is_complete

        gathers: deque[MpiRequest] = deque()

        def send(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node > 0:
                return True
            if len(stages) >= IN_FLIGHT:
                return False
            stages[chunk] = self._acquire_buffer(nodes * width(chunk), wire)
            source = x[starts[chunk] :][: width(chunk)].to(wire)
            gathers.append(remote.gathers.all_gather(_array(source), _array(stages[chunk])))
            return True

        def finish(step: int, _: int) -> bool:
            return step % nodes > 0 or (gathers[0].done() and gathers.popleft() is not None)

        yield from _pipeline(len(starts) * nodes, [send, finish, offer, get], blocking=(offer, get))

    def _acquire_buffer(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return a transfer buffer, preferably one that was returned before and whose pages are mapped."""
        buffers = self._free_buffers.get((count, dtype))
        return buffers.pop() if buffers else torch.empty(count, dtype=dtype)

    def _release_buffer(self, buffer: Tensor) -> None:
        self._free_buffers.setdefault((buffer.numel(), buffer.dtype), []).append(buffer)


def _pipeline(count: int, steps: Sequence[Step], *, blocking: Sequence[Step] = ()) -> Operation:
    """Run `count` chunks through the steps, each step in the order of chunks and as early as possible.

    Steps in `blocking` (empty: all) may sleep if no data is in flight between nodes: transfers progress when polled.
    """
    next_chunk = [0] * len(steps)
    wait_ns = 0
    while next_chunk[-1] < count:
        progressed = False
        ready = [k for k in range(len(steps)) if next_chunk[k] < (next_chunk[k - 1] if k else count)]
        has_transfer = bool(blocking) and any(steps[k] not in blocking for k in ready)
        for k in ready:
            if steps[k](next_chunk[k], 0 if has_transfer or k != ready[-1] else wait_ns):
                next_chunk[k] += 1
                progressed = True
        if not progressed or next_chunk[-1] == count:
            wait_ns = yield progressed
        else:
            wait_ns = 0


def _shares(count: int, nodes: int) -> list[int]:
    """Return the elements of a piece that each node reduces; full cache lines except for the last node."""
    share = -(-count // nodes // 32) * 32
    return [max(0, min(share, count - node * share)) for node in range(nodes)]


def _array(tensor: Tensor) -> "Buffer":
    """Return the bits as an integer array that MPI can move."""
    array: Buffer = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int32).numpy()
    return array
