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
    across: InterNodeGroup | None  # None with one node


class HierarchicalCollectives:
    """Operations on dense 1D tensors; one after the other, the same on all ranks."""

    def __init__(self, node: NodeGroup) -> None:
        self._node = node
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def all_reduce(self, x: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        exchange, across = self._node.exchange, self._node.across
        if across is None:
            yield from exchange.whole("all_reduce", x, x, wire=wire, op=op, scale=scale)
            return
        chunks = x.split(exchange.ranks * exchange.piece_elements(wire)) if x.numel() else ()  # type: ignore[no-untyped-call]
        if exchange.ranks == 1 and wire is x.dtype and scale == 1:  # a single rank per node sends directly from x to x
            crossing = self._crossing(across, dict(enumerate(chunks)), op, wire)
            yield from _pipeline(len(chunks), crossing, waiting=())
            return
        cuts = {count: exchange.cut(count, wire) for count in {chunk.numel() for chunk in chunks}}
        pieces = [cuts[chunk.numel()] for chunk in chunks]
        first = exchange.reserve(len(chunks))
        values: dict[int, Tensor] = {}
        how: dict[str, Any] = {"wire": wire, "op": op, "scale": scale}

        def put(i: int, patience: int) -> bool:
            return exchange.put(first + i, pieces[i], chunks[i], wire=wire, patience=patience)

        def combine(i: int, patience: int) -> bool:
            found = exchange.combine(first + i, pieces[i], chunks[i], **how, out=None, patience=patience)
            if found is not None:
                values[i] = found
            return found is not None

        def publish(i: int, _: int) -> bool:
            exchange.publish(first + i)
            del values[i]
            return True

        def get(i: int, patience: int) -> bool:
            return exchange.get(first + i, pieces[i], chunks[i], wire=wire, with_own=True, patience=patience)

        crossing = self._crossing(across, values, op, wire)
        yield from _pipeline(len(chunks), [put, combine, *crossing, publish, get], waiting=(put, combine, get))

    def _crossing(
        self, across: InterNodeGroup, values: dict[int, Tensor], op: Combination, wire: torch.dtype
    ) -> list[Step]:
        """Return the steps that reduce values[i], a piece already reduced within this node, over nodes."""
        summing: deque[tuple[MpiRequest, Tensor, Tensor]] = deque()
        gathering: deque[MpiRequest] = deque()

        def leave(i: int, _: int) -> bool:
            """Send the other nodes their shares of the piece, and receive this rank's share."""
            if len(summing) + len(gathering) >= IN_FLIGHT:
                return False
            counts = _shares(values[i].numel(), across.sums.size)
            own = counts[across.node]
            arrived = self._take(across.sums.size * own, wire)
            request = across.sums.exchange_parts(_array(values[i]), counts, _array(arrived), [own] * across.sums.size)
            summing.append((request, arrived, values[i]))
            return True

        def sum_up(_: int, __: int) -> bool:
            if not summing[0][0].done():
                return False
            arrived, piece = summing.popleft()[1:]
            counts = _shares(piece.numel(), across.sums.size)
            own = piece[sum(counts[: across.node]) :][: counts[across.node]]
            parts = [*arrived.view(across.sums.size, own.numel())]
            parts[across.node] = own
            self._node.exchange.fold(parts, op, own)
            self._give(arrived)
            gathering.append(across.gathers.all_gather_parts(_array(piece), counts))
            return True

        def arrive(_: int, __: int) -> bool:
            return gathering[0].done() and gathering.popleft() is not None

        return [leave, sum_up, arrive]

    def reduce_scatter(self, x: Tensor, out: Tensor, op: Combination, *, wire: torch.dtype, scale: float) -> Operation:
        """Reduce part r of x into out of rank r; out may be this part."""
        exchange, across, ranks = self._node.exchange, self._node.across, self._node.ranks
        if across is None:
            yield from exchange.whole("reduce_scatter", x, out, wire=wire, op=op, scale=scale)
            return
        count, nodes = out.numel(), len(ranks)
        length = exchange.piece_elements(wire)
        starts = range(0, count, length)
        first = exchange.reserve(len(starts) * nodes)
        stages: dict[int, Tensor] = {}
        how: dict[str, Any] = {"wire": wire, "op": op, "scale": scale}

        def width(i: int) -> int:
            return min(length, count - starts[i])

        def pieces(step: int) -> tuple[int, ChunkLayout]:
            chunk, node = divmod(step, nodes)
            return starts[chunk], ChunkLayout([rank * count for rank in ranks[node]], width(chunk))

        def put(step: int, patience: int) -> bool:
            start, cut = pieces(step)
            return exchange.put(first + step, cut, x[start:], wire=wire, patience=patience)

        def combine(step: int, patience: int) -> bool:
            start, cut = pieces(step)
            chunk, node = divmod(step, nodes)
            if chunk not in stages:
                if len(stages) >= IN_FLIGHT:
                    return False
                stages[chunk] = self._take(nodes * width(chunk), wire)
            target = stages[chunk][node * width(chunk) :]
            at = first + step, cut, x[start:]
            return exchange.combine(*at, **how, out=target, patience=patience) is not None

        crossing = self._shard_crossing(across, stages, out.split(length), op)  # type: ignore[no-untyped-call]
        yield from _pipeline(len(starts) * nodes, [put, combine, *crossing], waiting=(put, combine))

    def _shard_crossing(
        self, across: InterNodeGroup, stages: dict[int, Tensor], targets: Sequence[Tensor], op: Combination
    ) -> list[Step]:
        """Return the steps that reduce stages[i], a chunk of each node's shard, over nodes into targets[i]."""
        nodes = across.sums.size
        summing: deque[tuple[MpiRequest, Tensor]] = deque()

        def leave(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node == nodes - 1:
                stage, counts = stages[chunk], [targets[chunk].numel()] * nodes
                arrived = self._take(stage.numel(), stage.dtype)
                summing.append((across.sums.exchange_parts(_array(stage), counts, _array(arrived), counts), arrived))
            return True

        def sum_up(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node < nodes - 1:
                return True
            if not summing[0][0].done():
                return False
            arrived, target = summing.popleft()[1], targets[chunk]
            parts = [*arrived.view(nodes, target.numel())]
            parts[across.node] = own = stages[chunk].view(nodes, target.numel())[across.node]
            total = target if target.dtype is arrived.dtype else own
            self._node.exchange.fold(parts, op, total)
            if total is not target:
                target.copy_(total)
            self._give(arrived)
            self._give(stages.pop(chunk))
            return True

        return [leave, sum_up]

    def all_gather(self, x: Tensor, out: Tensor, *, wire: torch.dtype = torch.float32) -> Operation:
        """Gather x of each rank into out, in rank order, rounded to `wire`; x may be its part of out.

        With fp32 on the wire the bits are copied unchanged, whatever their type.
        """
        exchange, across, ranks = self._node.exchange, self._node.across, self._node.ranks
        count, nodes = x.numel(), len(ranks)
        if across is None:
            own = out[ranks[0][exchange.rank] * count :][:count]
            if wire is torch.float32 and own.data_ptr() != x.data_ptr():
                own.copy_(x)
            yield from exchange.whole("all_gather", x, out, wire=wire)
            return
        length = exchange.piece_elements(wire)
        starts = range(0, count, length)
        first = exchange.reserve(len(starts) * nodes)
        stages: dict[int, Tensor] = {}

        def width(i: int) -> int:
            return min(length, count - starts[i])

        def offer(step: int, patience: int) -> bool:
            chunk, node = divmod(step, nodes)
            source = stages[chunk][node * width(chunk) :]
            cut = ChunkLayout([0] * exchange.ranks, width(chunk))
            return exchange.offer(first + step, cut, source, patience=patience)

        def get(step: int, patience: int) -> bool:
            chunk, node = divmod(step, nodes)
            cut, target = ChunkLayout([rank * count for rank in ranks[node]], width(chunk)), out[starts[chunk] :]
            got = exchange.get(first + step, cut, target, wire=wire, with_own=True, patience=patience)
            if got and node == nodes - 1:
                self._give(stages.pop(chunk))
            return got

        gathering: deque[MpiRequest] = deque()

        def leave(step: int, _: int) -> bool:
            chunk, node = divmod(step, nodes)
            if node > 0:
                return True
            if len(stages) >= IN_FLIGHT:
                return False
            stages[chunk] = self._take(nodes * width(chunk), wire)
            source = x[starts[chunk] :][: width(chunk)].to(wire)
            gathering.append(across.gathers.all_gather(_array(source), _array(stages[chunk])))
            return True

        def arrive(step: int, _: int) -> bool:
            return step % nodes > 0 or (gathering[0].done() and gathering.popleft() is not None)

        yield from _pipeline(len(starts) * nodes, [leave, arrive, offer, get], waiting=(offer, get))

    def _take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return a transfer buffer, preferably one that was returned before and whose pages are mapped."""
        spare = self._spare.get((count, dtype))
        return spare.pop() if spare else torch.empty(count, dtype=dtype)

    def _give(self, memory: Tensor) -> None:
        self._spare.setdefault((memory.numel(), memory.dtype), []).append(memory)


def _pipeline(count: int, steps: Sequence[Step], *, waiting: Sequence[Step] = ()) -> Operation:
    """Run `count` chunks through the steps, each step in the order of chunks and as early as possible.

    Steps in `waiting` (empty: all) may sleep if no data is in flight between nodes: transfers progress when polled.
    """
    done = [0] * len(steps)
    patience = 0
    while done[-1] < count:
        progressed = False
        ready = [k for k in range(len(steps)) if done[k] < (done[k - 1] if k else count)]
        travels = bool(waiting) and any(steps[k] not in waiting for k in ready)
        for k in ready:
            if steps[k](done[k], 0 if travels or k != ready[-1] else patience):
                done[k] += 1
                progressed = True
        if not progressed or done[-1] == count:
            patience = yield progressed
        else:
            patience = 0


def _shares(count: int, nodes: int) -> list[int]:
    """Return the elements of a piece that each node reduces; full cache lines except for the last node."""
    share = -(-count // nodes // 32) * 32
    return [max(0, min(share, count - node * share)) for node in range(nodes)]


def _array(tensor: Tensor) -> "Buffer":
    """Return the bits as an integer array that MPI can move."""
    array: Buffer = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int32).numpy()
    return array
