"""Collectives of a process group as operations of the communication thread, on tensors of any type.

R is the number of ranks of the group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from dithc.engine.comm.mpi import Buffer, MpiCommunicator, MpiRequest
from dithc.engine.comm.process_group.hierarchical import HierarchicalCollectives, NodeGroup
from dithc.engine.comm.process_group.progress_thread import Operation
from dithc.engine.comm.process_group.shm_collectives import TYPES

Reduction = Literal["sum", "mean", "product", "max", "min", "band", "bor", "bxor"]

# MPI lacks some data types; their values are moved as integers of the same width.
INTEGER_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Data types that MPI's reductions accept directly.
MPI_TYPES = (torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# Tag of messages inside collectives; tags of callers start after it.
EXCHANGE_TAG, FIRST_TAG = range(2)


class Collectives:
    """Factory of operations for one group.

    Attributes:
        gather_wire: data type to which `all_gather_into` rounds fp32 values on all ranks: fp32 (no rounding) or bf16.
    """

    def __init__(
        self, channel: MpiCommunicator, node: NodeGroup | None, *, is_blocking: bool, wire: torch.dtype
    ) -> None:
        """Reduce through the ranks of a node if there is one, else through MPI, which may block."""
        self.gather_wire = torch.float32
        self._channel, self._is_blocking, self._wire = channel, is_blocking, wire
        self._hierarchy = None if node is None else HierarchicalCollectives(node)

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Operation:
        """Reduce the tensor over the ranks in place; return [tensor]."""
        flat = _dense(tensor)
        if self._hierarchy is not None and _is_shared(flat, op):
            yield from self._hierarchy.all_reduce(flat, _without_mean(op), **self._exchange_options(flat, op))
        else:
            values, restore = _reducible(flat, op)
            for piece in _pieces(values):
                if self._is_blocking:
                    self._channel.all_reduce_and_wait(piece.numpy(), _without_mean(op))
                else:
                    yield from _until_done(self._channel.all_reduce(piece.numpy(), _without_mean(op)))
            if op == "mean":
                _divide(values, self._channel.size)
            if restore:
                flat.copy_(values)
        return _copy_back(tensor, flat)

    def all_reduce_all(self, tensors: Sequence[Tensor], op: Reduction) -> Operation:
        """Reduce each tensor in place; tensors of one data type are packed into one."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            members = [tensor for tensor in tensors if tensor.dtype is dtype]
            packed = torch.cat([tensor.reshape(-1) for tensor in members])
            yield from self.all_reduce(packed, op)
            for tensor, part in zip(members, parts_of(packed, [tensor.numel() for tensor in members]), strict=True):
                tensor.copy_(part.view(tensor.shape))
        return list(tensors)

    def _exchange_options(self, flat: Tensor, op: Reduction) -> dict[str, Any]:
        wire = self._wire if flat.dtype is torch.float32 else flat.dtype
        return {"wire": wire, "scale": 1.0 / self._channel.size if op == "mean" else 1.0}

    def reduce(self, tensor: Tensor, op: Reduction, *, root: int) -> Operation:
        """Reduce into the tensor of rank `root`; the tensors of other ranks are unchanged."""
        values, _ = _reducible(_dense(tensor), op)
        out = torch.empty_like(values) if self._channel.rank == root else None
        for piece, target in zip_longest(_pieces(values), () if out is None else _pieces(out)):
            array = None if target is None else target.numpy()
            yield from _until_done(self._channel.reduce(piece.numpy(), array, _without_mean(op), root=root))
        if out is not None:
            if op == "mean":
                _divide(out, self._channel.size)
            tensor.copy_(out.view(tensor.shape))
        return [tensor]

    def broadcast(self, tensor: Tensor, *, root: int) -> Operation:
        flat = _dense(tensor)
        yield from _piecewise(_movable(flat), partial(self._channel.broadcast, root=root))
        return _copy_back(tensor, flat)

    def all_gather(self, tensor: Tensor, outputs: Sequence[Tensor]) -> Operation:
        """Gather the tensor of rank r into outputs[r]; shapes may differ between ranks."""
        source = _movable(_dense(tensor))
        sizes = {output.numel() for output in outputs}
        if sizes == {source.numel()} and source.numel() <= MpiCommunicator.MAX_ELEMENTS:
            packed = source.new_empty(self._channel.size * source.numel())
            yield from _until_done(self._channel.all_gather(source.numpy(), packed.numpy()))
            for output, part in zip(outputs, parts_of(packed, max(1, source.numel())), strict=False):
                output.copy_(part.view(output.dtype).view(output.shape))
            return list(outputs)
        for rank, output in enumerate(outputs):
            if rank == self._channel.rank:
                output.copy_(tensor)
            yield from self.broadcast(output, root=rank)
        return list(outputs)

    def all_gather_into(self, tensor: Tensor, output: Tensor) -> Operation:
        """Gather all ranks' tensors into the output, which has R times as many elements."""
        if self.gather_wire is torch.bfloat16 and tensor.dtype is output.dtype is torch.float32:
            yield from self._rounded_gather(_dense(tensor), flat := _dense(output))
            return _copy_back(output, flat)
        source, flat = _movable(_dense(tensor)), _dense(output)
        if self._hierarchy is not None and source.nbytes % 4 == source.data_ptr() % 4 == flat.data_ptr() % 4 == 0:
            whole = _movable(flat).view(torch.uint8).view(torch.float32)
            part = source.view(torch.uint8).view(torch.float32)
            if _overlaps(part, whole, own_index=self._channel.rank):
                part = part.clone()
            yield from self._hierarchy.all_gather(part, whole)
            return _copy_back(output, flat)
        if source.numel() <= MpiCommunicator.MAX_ELEMENTS:
            yield from _until_done(self._channel.all_gather(source.clone().numpy(), _movable(flat).numpy()))
            return _copy_back(output, flat)
        yield from self.all_gather(tensor.reshape(-1), flat.view(self._channel.size, -1).unbind())
        return _copy_back(output, flat)

    def _rounded_gather(self, source: Tensor, whole: Tensor) -> Operation:
        """Gather with bf16 on the wire; every rank also rounds its own part."""
        if _overlaps(source, whole, own_index=self._channel.rank):
            source = source.clone()
        if self._hierarchy is not None:
            yield from self._hierarchy.all_gather(source, whole, wire=torch.bfloat16)
            return
        rounded = source.new_empty(whole.numel(), dtype=torch.bfloat16)
        yield from self.all_gather_into(source.to(torch.bfloat16), rounded)
        whole.copy_(rounded)

    def reduce_scatter_from(self, tensor: Tensor, output: Tensor, op: Reduction) -> Operation:
        """Reduce part r of R equal parts over the ranks, into the output of rank r."""
        flat = _dense(tensor)
        if self._hierarchy is not None and _is_shared(flat, op) and output.dtype is flat.dtype:
            out = _dense(output)
            if _overlaps(out, flat, own_index=self._channel.rank):
                flat = flat.clone()
            yield from self._hierarchy.reduce_scatter(flat, out, _without_mean(op), **self._exchange_options(flat, op))
            return _copy_back(output, out)
        total = flat.clone()
        yield from self.all_reduce(total, op)
        output.copy_(total.view(self._channel.size, -1)[self._channel.rank].view(output.shape))
        return [output]

    def reduce_scatter(self, tensors: Sequence[Tensor], output: Tensor, op: Reduction) -> Operation:
        """Reduce tensors[r], of any shape, over the ranks into the output of rank r."""
        packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
        yield from self.all_reduce(packed, op)
        shard = parts_of(packed, [tensor.numel() for tensor in tensors])[self._channel.rank]
        output.copy_(shard.view(output.shape))
        return [output]

    def all_to_all(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Operation:
        """Copy inputs[own rank] of rank r to outputs[r]."""
        return self._exchange(dict(enumerate(inputs)), dict(enumerate(outputs)))

    def gather(self, tensor: Tensor, outputs: Sequence[Tensor] | None, *, root: int) -> Operation:
        """Gather the tensor of rank r into outputs[r] on rank `root`."""
        return self._exchange({root: tensor}, dict(enumerate(outputs or ())))

    def scatter(self, output: Tensor, tensors: Sequence[Tensor] | None, *, root: int) -> Operation:
        """Copy tensors[own rank] of rank `root` to the output."""
        return self._exchange(dict(enumerate(tensors or ())), {root: output})

    def _exchange(self, inputs: Mapping[int, Tensor], outputs: Mapping[int, Tensor]) -> Operation:
        """Send inputs[r] to rank r, and receive outputs[r] from it; return the outputs, or the inputs without outputs."""
        received = [(rank, output, _dense(output)) for rank, output in outputs.items()]
        sent = [(rank, _movable(_dense(tensor))) for rank, tensor in inputs.items()]
        requests = [
            self._channel.receive(piece.numpy(), source=rank, tag=EXCHANGE_TAG)
            for rank, _, flat in received
            for piece in _pieces(_movable(flat))
        ]
        for rank, flat in sent:
            requests += [self._channel.send(piece.numpy(), dest=rank, tag=EXCHANGE_TAG) for piece in _pieces(flat)]
        for request in requests:
            yield from _until_done(request)
        for _, output, flat in received:
            _copy_back(output, flat)
        return list((outputs or inputs).values())

    def send(self, tensor: Tensor, *, dest: int, tag: int) -> Operation:
        """Send the tensor to rank `dest`; tags from FIRST_TAG on are for callers."""
        yield from _piecewise(_movable(_dense(tensor)), partial(self._channel.send, dest=dest, tag=tag))
        return [tensor]

    def receive(self, tensor: Tensor, *, source: int | None, tag: int) -> Operation:
        flat = _dense(tensor)
        yield from _piecewise(_movable(flat), partial(self._channel.receive, source=source, tag=tag))
        return _copy_back(tensor, flat)

    def barrier(self) -> Operation:
        yield from _until_done(self._channel.barrier())
        return []


def parts_of(tensor: Tensor, sizes: int | list[int]) -> Sequence[Tensor]:
    """Split a tensor along its first dimension into parts of the given size(s)."""
    parts: Sequence[Tensor] = tensor.split(sizes)  # type: ignore[no-untyped-call]
    return parts


def _until_done(request: MpiRequest) -> Iterator[bool]:
    while not request.done():
        yield False


def _dense(tensor: Tensor) -> Tensor:
    """Return the elements as a dense 1D tensor, without a copy if possible."""
    return tensor.detach().contiguous().view(-1)


def _copy_back(tensor: Tensor, flat: Tensor) -> list[Tensor]:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))
    return [tensor]


def _movable(flat: Tensor) -> Tensor:
    """Return the same memory as integers of the same width."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(INTEGER_TYPES[flat.itemsize])


def _reducible(flat: Tensor, op: Reduction) -> tuple[Tensor, bool]:
    """Return values that MPI can reduce, and whether they are a copy in another type (fp32 for half precision)."""
    if flat.dtype in MPI_TYPES:
        return flat, False
    if flat.dtype in (torch.bfloat16, torch.float16):
        return flat.float(), True
    if flat.dtype is torch.bool and op in ("max", "min", "bor", "band", "sum", "product"):
        return flat.to(torch.int32), True
    raise TypeError(f"all-reduce {op} of {flat.dtype}: not supported; convert the tensor first")


def _is_shared(flat: Tensor, op: Reduction) -> bool:
    return flat.dtype in TYPES and op in ("sum", "mean", "max", "min", "product")


def _overlaps(part: Tensor, whole: Tensor, *, own_index: int) -> bool:
    """Return whether a part overlaps the output in memory, except at its own position `own_index` among equal parts."""
    start = part.data_ptr() - whole.data_ptr()
    return -part.nbytes < start < whole.nbytes and start != own_index * part.nbytes


def _without_mean(op: Reduction) -> Any:
    """Return the reduction that MPI and the node exchange perform; a mean is a scaled sum."""
    return "sum" if op == "mean" else op


def _divide(total: Tensor, size: int) -> None:
    total.div_(size) if total.is_floating_point() else total.floor_divide_(size)


def _pieces(flat: Tensor) -> Sequence[Tensor]:
    """Split a flat tensor into parts with counts that MPI accepts."""
    return parts_of(flat, MpiCommunicator.MAX_ELEMENTS) if flat.numel() else ()


def _piecewise(flat: Tensor, begin: Callable[[Buffer], MpiRequest]) -> Operation:
    for piece in _pieces(flat):
        yield from _until_done(begin(piece.numpy()))
