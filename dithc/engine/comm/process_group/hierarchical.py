"""Reductions and gathers over nodes with several ranks: shared memory within a node, MPI between nodes.

R is the number of ranks per node and M the number of nodes. Ranks with the same index on their nodes exchange with each
other, so that every rank of a node sends its share of the data. If the nodes form islands, an island first reduces among
its own nodes, and each of its nodes exchanges one share with the other islands. Arrays are processed in chunks, several
of which are in flight. Values are reduced over the ranks of a node in the order of their indices, then over the nodes of
an island, then over islands; each time in fp32, from and to the wire type. An element's sum therefore has the same bits
for every operation and chunk.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
    """Ranks with the same index on the nodes of an island or of all islands: two channels over them in order.

    `index` is the number of this rank's node or island. Each channel carries one type of step in the order of chunks; on
    a single channel the steps would interleave differently on every node.
    """

    index: int
    sums: "MpiCommunicator"
    gathers: "MpiCommunicator"


@dataclass(frozen=True)
class NodeGroup:
    """Placement of the ranks of a group on nodes.

    Attributes:
        exchange: collectives of this node.
        ranks: ranks of each node by index. With I islands, island i has the nodes i, i + I, i + 2 I, ...
        remote: peers inside the island, then peers on other islands; empty with one node.
    """

    exchange: ShmCollectives
    ranks: Sequence[Sequence[int]]
    remote: Sequence[InterNodeGroup]


class HierarchicalCollectives:
    """Operations on dense 1D tensors; one after the other, the same on all ranks."""

    def __init__(self, node: NodeGroup) -> None:
        self._node = node
        self._free_buffers: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def all_reduce(self, x: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        exchange, remote = self._node.exchange, self._node.remote
        if not remote:
            yield from exchange.whole("all_reduce", x, x, wire=wire, op=op, scale=scale)
            return
        chunks = x.split(exchange.ranks * exchange.piece_elements(wire)) if x.numel() else ()  # type: ignore[no-untyped-call]
        if exchange.ranks == 1 and wire is x.dtype and scale == 1:  # a single rank per node sends directly from x to x
            steps = self._remote_steps(remote, dict(enumerate(chunks)), op)
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

        steps = self._remote_steps(remote, values, op)
        yield from _pipeline(len(chunks), [put, combine, *steps, publish, get], blocking=(put, combine, get))

    def _remote_steps(self, levels: Sequence[InterNodeGroup], values: dict[int, Tensor], op: Combination) -> list[Step]:
        """Return the steps that reduce values[i], a piece already reduced within this node, over nodes."""
        level, *outer = levels
        shares: dict[int, Tensor] = {}
        active: set[int] = set()
        gathers: deque[MpiRequest] = deque()
        exchange, reduce = self._share_steps(level, values, shares, op)

        def send(i: int, wait_ns: int) -> bool:
            if len(active) >= IN_FLIGHT:
                return False
            active.add(i)
            return exchange(i, wait_ns)

        def gather(i: int, _: int) -> bool:
            del shares[i]
            gathers.append(level.gathers.all_gather_parts(_array(values[i]), _shares(values[i], level.gathers.size)))
            return True

        def finish(i: int, _: int) -> bool:
            if not gathers[0].done():
                return False
            gathers.popleft()
            active.remove(i)
            return True

        return [send, reduce, *(self._remote_steps(outer, shares, op) if outer else ()), gather, finish]

    def _share_steps(
        self, level: InterNodeGroup, values: dict[int, Tensor], shares: dict[int, Tensor], op: Combination
    ) -> list[Step]:
        """Return the steps that send the other nodes their shares of values[i], and reduce this rank's into shares[i]."""
        pending: deque[tuple[MpiRequest, Tensor]] = deque()
        size = level.sums.size

        def send(i: int, _: int) -> bool:
            counts = _shares(values[i], size)
            share = counts[level.index]
            buffer = self._acquire_buffer(size * share, values[i].dtype)
            request = level.sums.exchange_parts(_array(values[i]), counts, _array(buffer), [share] * size)
            pending.append((request, buffer))
            return True

        def reduce(i: int, _: int) -> bool:
            if not pending[0][0].done():
                return False
            buffer = pending.popleft()[1]
            counts = _shares(values[i], size)
            shares[i] = values[i][sum(counts[: level.index]) :][: counts[level.index]]
            parts = [*buffer.view(size, counts[level.index])]
            parts[level.index] = shares[i]
            self._node.exchange.fold(parts, op, shares[i])
            self._release_buffer(buffer)
            return True

        return [send, reduce]

    def reduce_scatter(self, x: Tensor, out: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        """Reduce part r of x into out of rank r; out may be this part."""
        exchange, remote, ranks = self._node.exchange, self._node.remote, self._node.ranks
        if not remote:
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

        steps: list[Step] = []
        values = stages
        for level in remote:
            shares: dict[int, Tensor] = {}
            steps += self._share_steps(level, values, shares, op)
            values = shares

        def store(chunk: int, _: int) -> bool:
            out[starts[chunk] :][: width(chunk)].copy_(values[chunk])
            self._release_buffer(stages.pop(chunk))
            return True

        steps = _per_chunk([*steps, store], nodes, node=nodes - 1)
        yield from _pipeline(len(starts) * nodes, [put, combine, *steps], blocking=(put, combine))

    def all_gather(self, x: Tensor, out: Tensor, *, wire: torch.dtype = torch.float32) -> Operation:
        """Gather x of each rank into out, in rank order, rounded to `wire`; x may be its part of out.

        With fp32 on the wire the bits are copied unchanged, whatever their type.
        """
        exchange, remote, ranks = self._node.exchange, self._node.remote, self._node.ranks
        count, nodes = x.numel(), len(ranks)
        if not remote:
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

        sizes = [level.gathers.size for level in remote]
        number = sum(level.index * math.prod(sizes[k + 1 :]) for k, level in enumerate(remote))

        def block(chunk: int, level: int) -> "Buffer":
            """Return the part of a stage that the gather of a level fills."""
            count = math.prod(sizes[level:])
            return _array(stages[chunk][number // count * count * width(chunk) :][: count * width(chunk)])

        def load(chunk: int, _: int) -> bool:
            if len(stages) >= IN_FLIGHT:
                return False
            stages[chunk] = stage = self._acquire_buffer(nodes * width(chunk), wire)
            stage[number * width(chunk) :][: width(chunk)].copy_(x[starts[chunk] :][: width(chunk)])
            return True

        steps: list[Step] = [load]
        for k in reversed(range(len(remote))):
            steps += _gather_steps(remote[k], partial(block, level=k))
        steps = _per_chunk(steps, nodes, node=0)
        yield from _pipeline(len(starts) * nodes, [*steps, offer, get], blocking=(offer, get))

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


def _gather_steps(level: InterNodeGroup, block: Callable[[int], "Buffer"]) -> list[Step]:
    """Return the steps that gather the equal parts of a chunk's block, in place."""
    gathers: deque[MpiRequest] = deque()

    def send(chunk: int, _: int) -> bool:
        values = block(chunk)
        gathers.append(level.gathers.all_gather_parts(values, [values.size // level.gathers.size] * level.gathers.size))
        return True

    def finish(_: int, __: int) -> bool:
        return gathers[0].done() and gathers.popleft() is not None

    return [send, finish]


def _per_chunk(steps: Sequence[Step], nodes: int, *, node: int) -> list[Step]:
    """Return steps of chunks as steps of the pieces of all nodes; a step is performed at the piece of one node."""

    def at_node(step: Step) -> Step:
        return lambda i, wait_ns: i % nodes != node or step(i // nodes, wait_ns)

    return [at_node(step) for step in steps]


def _shares(piece: Tensor, nodes: int) -> list[int]:
    """Return the elements of a piece that each node reduces: equal shares, or full cache lines except for the last."""
    count = piece.numel()
    share = count // nodes if count % nodes == 0 else -(-count // nodes // 32) * 32
    return [max(0, min(share, count - node * share)) for node in range(nodes)]


def _array(tensor: Tensor) -> "Buffer":
    """Return the bits as an integer array that MPI can move."""
    array: Buffer = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int32).numpy()
    return array
