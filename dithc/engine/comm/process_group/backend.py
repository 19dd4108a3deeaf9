"""Backend "dithc-mpi" of `torch.distributed`: MPI on the stock torch wheel, in Python over mpi4py.

DistributedDataParallel, DTensor, FSDP2 and distributed checkpoints call it like any other backend. Each group has one
communication thread. A call returns a Work whose future holds the tensors, or raises if the operation failed. The
import registers the backend and loads MPI.
"""

import atexit
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dithc.core.logging import get_logger, user_error
from dithc.engine.comm import rendezvous
from dithc.engine.comm.mpi import MpiCommunicator, multiple_threads
from dithc.engine.comm.process_group.collectives import FIRST_TAG, Collectives, Reduction, parts_of
from dithc.engine.comm.process_group.missing_ranks import MissingRankDetector
from dithc.engine.comm.process_group.node_peers import NodePeers, node_of
from dithc.engine.comm.process_group.progress_thread import CommOperation, MpiWork, Operation, ProgressThread
from dithc.engine.comm.settings import CommConfig

log = get_logger(__name__)

NAME = "dithc-mpi"
WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STOP_SECONDS = 5.0

_groups: "weakref.WeakSet[MpiProcessGroup]" = weakref.WeakSet()
# CPU of the communication threads of this process; None until a core plan sets it.
_communication_cpu: int | None = None
_max_seconds: float | None = None
_stopped_seconds: float | None = None


# Typed as Any: c10d calls each method with several signatures, and one signature here accepts them all.
_PROCESS_GROUP: Any = dist.ProcessGroup


class MpiProcessGroup(_PROCESS_GROUP):  # type: ignore[misc]
    """Group of ranks; every method has the meaning and the arguments of c10d's method."""

    def __init__(self, options: Any, _: Any) -> None:
        """Connect the ranks with the active `CommConfig`; collective. UserError if MPI does not support several threads."""
        rank, size, ranks = options.group_rank, options.group_size, list(options.global_ranks_in_group) or None
        super().__init__(rank, size)
        if not multiple_threads():
            raise user_error(
                "MPI's thread level",
                got="less than MPI_THREAD_MULTIPLE",
                expected="MPI_THREAD_MULTIPLE, for the communication thread",
                fix="use an MPI that supports it; do not initialize MPI before dithc",
            )
        self._group_name = self._group_desc = ""
        self._rank, self._size, self._timeout = rank, size, options.timeout
        channel, config = MpiCommunicator.from_ranks(ranks), CommConfig.current()
        node = node_of(channel, ranks) if config.collectives == "hierarchical" else None
        is_blocking = config.collectives == "blocking"
        self.collectives = Collectives(channel, node, is_blocking=is_blocking, wire=WIRES[config.reduce_dtype])
        self._peers, self._number = NodePeers(channel, ranks), 0
        store_rank = 0 if not ranks else ranks.index(0) if 0 in ranks else None
        self._missing_ranks = MissingRankDetector(options.store, rank, size, store_rank, self._peers.describe)
        self.thread = ProgressThread(f"dithc-mpi-{rank}", cpu=_communication_cpu, watch=self._check_ranks)
        _groups.add(self)

    def name(self) -> str:
        return NAME

    getBackendName = name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, description: str) -> None:
        self._group_desc = description

    def getGroupName(self) -> str:
        return self._group_name

    def getGroupDesc(self) -> str:
        return self._group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def shutdown(self) -> None:
        if not self.thread.stop(timeout_seconds=STOP_SECONDS):
            log.warning("communication thread: still waiting for other ranks after %g s; abandoning it", STOP_SECONDS)
        _groups.discard(self)

    abort = shutdown

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Any:
        tensors, op = _tensors(tensors), _reduction(opts)
        if len(tensors) == 1:
            operation = self.collectives.all_reduce(tensors[0], op)
            return self._start("all_reduce", operation)
        return self._start("all_reduce", self.collectives.all_reduce_all(tensors, op))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Any:
        operation = self.collectives.reduce(_tensors(tensors)[0], _reduction(opts), root=_root(opts))
        return self._start("reduce", operation)

    def broadcast(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Any:
        return self._start("broadcast", self.collectives.broadcast(_tensors(tensors)[0], root=_root(opts)))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        lists = outputs if isinstance(outputs[0], list | tuple) else [outputs]
        return self._start_all("all_gather", self.collectives.all_gather, _tensors(inputs), lists)

    allgather_coalesced = allgather

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        operation = self.collectives.all_gather_into(tensor, output)
        return self._start("all_gather", operation)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._start_all("all_gather", self.collectives.all_gather_into, inputs, outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        lists = inputs if isinstance(inputs[0], list | tuple) else [inputs]
        collective = partial(self.collectives.reduce_scatter, op=_reduction(opts))
        return self._start_all("reduce_scatter", collective, lists, _tensors(outputs))

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        operation = self.collectives.reduce_scatter_from(tensor, output, _reduction(opts))
        return self._start("reduce_scatter", operation)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        collective = partial(self.collectives.reduce_scatter_from, op=_reduction(opts))
        return self._start_all("reduce_scatter", collective, inputs, outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        inputs = parts_of(tensor, input_sizes or tensor.shape[0] // self._size)
        outputs = parts_of(output, output_sizes or output.shape[0] // self._size)
        return self._start("all_to_all", self.collectives.all_to_all(inputs, outputs))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._start("all_to_all", self.collectives.all_to_all(list(inputs), list(outputs)))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        root = _root(opts)
        received = _tensors(outputs[0]) if self._rank == root else None
        return self._start("gather", self.collectives.gather(_tensors(inputs)[0], received, root=root))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        root = _root(opts)
        sent = _tensors(inputs[0]) if self._rank == root else None
        return self._start("scatter", self.collectives.scatter(_tensors(outputs)[0], sent, root=root))

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        operation = self.collectives.send(_tensors(tensors)[0], dest=dstRank, tag=FIRST_TAG + tag)
        return self._start("send", operation, in_order=False)

    def recv(self, tensors: Any, srcRank: int | None, tag: int = 0) -> Any:
        operation = self.collectives.receive(_tensors(tensors)[0], source=srcRank, tag=FIRST_TAG + tag)
        return self._start("recv", operation, in_order=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    def barrier(self, *_: Any, **__: Any) -> Any:
        return self._start("barrier", self.collectives.barrier())

    def _start(self, name: str, operation: Operation, *, in_order: bool = True) -> Any:
        """Pass an operation to the communication thread; collectives run one after the other."""
        future: Future[Any] = Future()
        seconds = self._timeout.total_seconds()
        seconds = seconds if _max_seconds is None else min(seconds, _max_seconds)
        self._number += in_order

        def complete(result: Any, error: BaseException | None) -> None:
            future.set_result((result, error))

        label = f"{name} of {NAME}, rank {self._rank} of {self._size}"
        number = self._number if in_order else None
        submitted = CommOperation(label, operation, complete, seconds, number, in_order)
        self.thread.submit(submitted)
        return MpiWork(future, submitted)

    def _check_ranks(self, operations: Sequence[CommOperation]) -> None:
        self._peers.check(stopped_seconds=_stopped_seconds)
        self._missing_ranks.check(operations)

    def _start_all(self, name: str, collective: Callable[..., Operation], inputs: Any, outputs: Any) -> Any:
        operations = [collective(x, out) for x, out in zip(inputs, outputs, strict=True)]
        return self._start(name, operations[0] if len(operations) == 1 else _chain(operations))


def set_timeout(seconds: float | None, *, stopped_seconds: float | None = None) -> None:
    """See `Group.wait_at_most`; applies to future operations of this process."""
    global _max_seconds, _stopped_seconds
    _max_seconds, _stopped_seconds = seconds, stopped_seconds


def bind_progress_threads(cpu: int) -> None:
    global _communication_cpu
    _communication_cpu = cpu
    for group in list(_groups):
        group.thread.bind(cpu)


def _chain(operations: list[Operation]) -> Operation:
    results: list[Any] = []
    for operation in operations:
        results.extend((yield from operation))
    return results


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _reduction(opts: Any) -> Reduction:
    op = getattr(opts, "reduceOp", opts)
    if op is None:
        return "sum"
    for name in get_args(Reduction):
        if op == getattr(dist.ReduceOp, "AVG" if name == "mean" else name.upper()):
            return cast(Reduction, name)
    raise ValueError(f"{NAME}: reduction {op}; expected one of {', '.join(get_args(Reduction))}")


def _root(opts: Any) -> int:
    return int(opts) if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


rendezvous.install()
dist.Backend.register_backend(NAME, MpiProcessGroup, extended_api=True, devices=["cpu"])


@atexit.register
def _stop_all() -> None:
    """Stop all threads before MPI ends. Registered after mpi4py's handler, hence called before it."""
    for group in list(_groups):
        group.shutdown()
