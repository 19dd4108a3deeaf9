"""Group of the ranks of a run: identity, agreement and data exchange, also for a single rank."""

import atexit
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dithc.core.logging import UserError, get_logger, setup_logging, user_error
from dithc.core.processes import HELD, STOPPED
from dithc.engine.comm import environment
from dithc.engine.comm.launch import (
    STOP_TIMEOUT_SECONDS,
    check_shared_memory,
    exit_report,
    set_stop_timeout,
    start_watchdog,
    unlink_shared_memory,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dithc.engine.comm.mpi import MpiCommunicator, MpiWorld
    from dithc.engine.comm.process_group import SharedSegment

log = get_logger(__name__)

# Longer than the slowest operation of one rank for which the other ranks wait: writing a large checkpoint to a slow
# file system.
DEFAULT_TIMEOUT_SECONDS = 1800.0
# Statuses with which all ranks exit by agreement: done, stopped and saved, another trainer holds the run.
AGREED_STATUSES = (None, 0, STOPPED, HELD)
# An aborting launcher drops output that it has not forwarded yet, including the reason of the abort.
FLUSH_SECONDS = 2.0
BACKEND_VARIABLE = "DITHC_COMM_BACKEND"
BACKENDS = ("dithc-mpi", "gloo")

_process = os.getpid()  # the only process that MPI serves
_is_watched = False
_world: "MpiWorld | None" = None  # set once MPI has started
_open_group: "Group | None" = None  # the group of several ranks with an open context


@dataclass(kw_only=True, eq=False)
class Group:
    """Ranks of a run; a context manager that ends every rank when one fails.

    Attributes:
        rank: number of this process among all ranks, from 0.
        size: number of ranks.
        local_rank: number of this process among the ranks of its node.
        local_size: number of ranks of this node.
        node: name of the node, equal on all its ranks and different between nodes.
        is_nested: whether its context is inside the context of an equal group.
        world: the ranks in MPI; None for one rank.
        waited_seconds: time spent in `all_reduce_`, `any` and `barrier`, most of it waiting for other ranks.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: str = ""
    is_nested: bool = False
    world: "MpiWorld | None" = None
    waited_seconds: float = 0.0
    _firsts: "MpiCommunicator | None" = field(default=None, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        is_agreed = error is None or (isinstance(error, SystemExit) and error.code in AGREED_STATUSES)
        if self.world is None or is_agreed:
            self.close()
            return
        _log_failure(error, source=f"rank {self.rank} of {self.size}")
        self.world.abort(_status(error))

    @property
    def host(self) -> str:
        """Name of this rank's node for users and for the scheduler; `node` also distinguishes hosts of equal names."""
        return os.environ.get("SLURMD_NODENAME") or platform.node()

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        if self.size > 1:
            start = time.perf_counter()
            self.distributed().barrier()
            self.waited_seconds += time.perf_counter() - start

    def any(self, flag: bool) -> bool:
        """Return, on every rank, whether the flag of any rank is set."""
        if self.size == 1:
            return flag
        import torch

        return bool(self.all_reduce_(torch.tensor([int(flag)], dtype=torch.int32), op="max").item())

    def broadcast_object(self, value: Any, *, source: int = 0) -> Any:
        """Return the picklable value of rank `source` on every rank."""
        if self.size == 1:
            return value
        values = [value]
        self.distributed().broadcast_object_list(values, src=source)
        return values[0]

    def broadcast_(self, tensor: "Tensor", *, source: int = 0) -> "Tensor":
        """Copy the tensor of rank `source` to all ranks, in place, and return it."""
        if self.size > 1:
            self.distributed().broadcast(tensor, src=source)
        return tensor

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self.distributed().all_gather_object(values, value)
        return values

    def all_reduce_(self, tensor: "Tensor", *, op: Literal["sum", "mean", "max", "min"] = "sum") -> "Tensor":
        """Reduce a tensor over all ranks in place and return it; `mean` divides the sum by the number of ranks."""
        if self.size == 1:
            return tensor
        distributed = self.distributed()
        operation, start = "SUM" if op == "mean" else op.upper(), time.perf_counter()
        distributed.all_reduce(tensor, op=getattr(distributed.ReduceOp, operation))
        self.waited_seconds += time.perf_counter() - start
        return tensor.div_(self.size) if op == "mean" else tensor

    def wait_at_most(self, seconds: float | None, *, stopped_seconds: float | None = None) -> None:
        """Limit the time for which other ranks wait for a rank; a rank that exceeds it ends all ranks.

        `seconds` None is the timeout of `connect_ranks`; `stopped_seconds` applies to a rank of this node that a signal has
        stopped. Without effect with gloo, which has a single timeout.
        """
        if threads := self._communication():
            threads.set_timeout(seconds, stopped_seconds=stopped_seconds)

    @contextmanager
    def stop_timeout(self) -> "Iterator[None]":
        """End a rank that a signal stops for ten seconds during a `with` block of collective calls.

        For operations that wait without limit, such as the creation of a group.
        """
        if self.size > 1:
            set_stop_timeout(STOP_TIMEOUT_SECONDS)
        try:
            yield
        finally:
            set_stop_timeout(None)

    def split(self, parts: "Sequence[Sequence[int]]") -> Any:
        """Create one group of torch.distributed per part, of ascending disjoint ranks; collective over all ranks.

        Returns the group of this rank's part; None if the part has one rank or no part contains this rank.
        """
        distributed = self.distributed()
        local = None
        for members in parts:
            if len(members) > 1:
                subgroup = distributed.new_group(list(members))
                local = subgroup if self.rank in members else local
        return local

    def link_rates(self, *, message_bytes: int, messages: int) -> dict[int, float]:
        """Return bytes per second to the first rank of each other node, by rank; empty on other ranks; collective."""
        if self.world is None:
            return {}
        from dithc.engine.comm.process_group import measure_rates

        if self._firsts is None:
            self._firsts = self.world.split(int(self.local_rank == 0), key=self.rank)
        if self.local_rank > 0:
            return {}
        with self.stop_timeout():
            ranks = self._firsts.all_gather_object(self.rank)
            rates = measure_rates(self._firsts, message_bytes=message_bytes, messages=messages)
        return {rank: rate for rank, rate in zip(ranks, rates, strict=True) if rank != self.rank}

    @staticmethod
    def segment(num_bytes: int, *, over: Any, timeout_seconds: float) -> "SharedSegment":
        """Return memory shared by the ranks of `over`, a group of torch.distributed (see `SharedSegment`)."""
        from dithc.engine.comm.process_group import SharedSegment

        return SharedSegment(num_bytes, over=over, timeout_seconds=timeout_seconds)

    def bind_communication_threads(self, cpu: int) -> None:
        """Bind the communication threads, also of later process groups, to a logical CPU."""
        if threads := self._communication():
            threads.bind_progress_threads(cpu)

    def _communication(self) -> ModuleType | None:
        """Return the module of the communication threads; None for one rank or gloo, which have none."""
        if self.size == 1 or _backend() != BACKENDS[0]:
            return None
        from dithc.engine.comm import process_group

        return process_group

    @staticmethod
    def distributed() -> Any:
        """Return `torch.distributed`, connected; UserError if the block of the group has ended."""
        import torch.distributed as distributed

        if not distributed.is_initialized():
            raise user_error(
                "ranks cannot exchange data",
                got="a group after the end of its `with comm.init_distributed()` block",
                expected="a group with an active block",
                fix="move the call into the block, with the model and the optimizer that use the group",
            )
        return distributed

    def close(self) -> None:
        """Leave the group unless it is nested in the context of an equal group. MPI ends with the process."""
        global _open_group
        if self.size > 1 and not self.is_nested:
            import torch.distributed as distributed

            _open_group = None
            if distributed.is_initialized():
                distributed.destroy_process_group()


def connect_ranks(expected_ranks: int | None = None, *, timeout_seconds: float | None = None) -> Group:
    """Join the ranks that were started together; use the result as a context manager.

    Repeated and nested calls are allowed. A process that no launcher serves is one rank, and never loads MPI.

    Args:
        expected_ranks: number of ranks; None for the number announced by `dithc launch`, else by the launcher.
        timeout_seconds: time after which a rank stops waiting for another; None for half an hour. A rank that fails
            ends the other ranks regardless.

    Raises:
        UserError: the number of started ranks differs from the expected number, or MPI does not serve this process or
            thread.
    """
    global _open_group
    started = environment.started_by(os.environ)
    announced = int(os.environ.get(environment.EXPECTED_RANKS_VARIABLE) or 0) or None  # by `dithc launch`
    expected = announced if expected_ranks is None else expected_ranks
    if _world is None and (started is None or (started.size == 1 and expected in (None, 1))):
        if expected not in (None, 1):
            raise _size_error(1, expected, started)
        if started is None and (names := environment.left_over(os.environ)):
            log.info("one rank: no launcher serves this process, ignoring %s", ", ".join(names))
        return Group()
    _check_process()
    if _open_group is not None:
        if expected not in (None, _open_group.size):
            raise _size_error(_open_group.size, expected, started)
        return replace(_open_group, is_nested=True)
    timeout = timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    if _world is None:
        watch_rank()
    try:
        if _world is not None:
            _world.connect_again(timeout)
        world = _world or _start_mpi()
        required = expected if expected is not None else (started and started.size) or world.size
        group = _join_world(world, timeout) if world.size == required else None
    except BaseException as error:
        # Do not wait for the interpreter's exit: MPI would wait there for the other ranks, which wait for this rank.
        # The launcher ends them now.
        _log_failure(error, source="a rank (while connecting)")
        os._exit(_status(error))
    if group is not None:
        _open_group = group if group.size > 1 else None
        return group
    if world.rank > 0:
        raise SystemExit(2)
    raise _size_error(world.size, required, started)


def watch_rank() -> None:
    """Start the watchdog of this process if a launcher started several; the first call counts.

    The watchdog keeps the memory that this process has at the call: call it before the import of large libraries.
    """
    global _process, _is_watched
    started = environment.started_by(os.environ)
    if not _is_watched and started is not None and started.size != 1:
        start_watchdog()
        _process, _is_watched = os.getpid(), True


def _check_process() -> None:
    """Reject processes and threads that MPI does not serve."""
    is_fork = os.getpid() != _process
    if is_fork or threading.current_thread() is not threading.main_thread():
        raise user_error(
            "comm.init_distributed() outside of a rank's main thread",
            got="a forked child of a rank" if is_fork else "a thread",
            expected="the main thread",
            fix="call comm.init_distributed() in the rank's main thread and pass results to it; start processes by `spawn`",
        )


def _start_mpi() -> "MpiWorld":
    global _world
    check_shared_memory()
    from dithc.engine.comm.mpi import MpiWorld

    _world = MpiWorld()
    if _world.size > 1:
        atexit.register(_world.announce_end)
    return _world


def _join_world(world: "MpiWorld", timeout_seconds: float) -> Group:
    from dithc.engine.numa import ranks_on_node  # this module needs torch

    if world.size == 1:
        set_stop_timeout(None)
        return Group()
    setup_logging(rank=world.rank, level=logging.getLogger("dithc").level or logging.INFO)
    nodes = world.all_gather_object(environment.node_name())
    unlink_shared_memory()
    local_ranks = [rank for rank, node in enumerate(nodes) if node == nodes[world.rank]]
    backend = _backend()
    _init_torch(world, backend, one_node=len(set(nodes)) == 1, timeout_seconds=timeout_seconds)
    set_stop_timeout(None)  # all ranks are connected
    ranks_on_node(len(local_ranks))
    log.info("%d ranks on %d node(s), %s", world.size, len(set(nodes)), backend)
    if world.rank == 0 and (started_file := os.environ.get(environment.STARTED_VARIABLE)):
        try:
            Path(started_file).touch()
        except OSError as error:  # without the file, `dithc launch` would end the ranks as unconnected
            fix = "start in a folder that all nodes can write to"
            raise user_error(f"marker file {started_file}", got=error, expected="a new file", fix=fix) from error
    return Group(
        rank=world.rank,
        size=world.size,
        local_rank=local_ranks.index(world.rank),
        local_size=len(local_ranks),
        node=nodes[world.rank],
        world=world,
    )


def _backend() -> str:
    """Return the backend of torch.distributed: dithc-mpi unless DITHC_COMM_BACKEND selects another."""
    backend = os.environ.get(BACKEND_VARIABLE) or BACKENDS[0]
    if backend not in BACKENDS:
        fix = f"correct or unset {BACKEND_VARIABLE}"
        raise user_error(f"backend ({BACKEND_VARIABLE})", got=backend, expected=" or ".join(BACKENDS), fix=fix)
    return backend


def _init_torch(world: "MpiWorld", backend: str, *, one_node: bool, timeout_seconds: float) -> None:
    import torch.distributed as distributed

    from dithc.engine.comm.rendezvous import store_of

    if backend == "gloo":
        if one_node and Path("/sys/class/net/lo").exists() and "GLOO_SOCKET_IFNAME" not in os.environ:
            # The host name often does not resolve, or resolves to an interface that a container lacks.
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            log.info("all ranks are on one node: gloo uses the loopback interface")
    else:
        import dithc.engine.comm.process_group  # noqa: F401  the import registers the backend
    timeout = timedelta(seconds=timeout_seconds)
    store = store_of(world, timeout=timeout)
    distributed.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout)


def _log_failure(error: BaseException | None, *, source: str) -> None:
    """Log why this rank ends all ranks, and wait until the message is forwarded."""
    if isinstance(error, UserError):
        _logger_of(error).error("%s", exit_report.deduplicated_message(str(error)))
    else:
        log.error("%s failed, ending all ranks: %r", source, error, exc_info=error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    time.sleep(FLUSH_SECONDS)


def _logger_of(error: UserError) -> logging.Logger:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return get_logger(next((name for name in reversed(modules) if name.startswith("dithc.")), __name__))


def _status(error: BaseException | None) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, UserError):
        return error.status
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _size_error(size: int, expected: int | None, started: environment.LaunchInfo | None) -> UserError:
    if started is None:
        fix = "start it by `dithc launch --ranks N --launcher mpiexec|srun -- ...`, or expect one rank"
    elif size == 1:
        fix = (
            "the launcher belongs to another MPI than the library that mpi4py loads, so each process is a separate "
            'world ("0 of 1"): use the mpiexec next to this Python, or point MPI4PY_LIBMPI at the library of your '
            "launcher; with srun try DITHC_SRUN_MPI=hydra, pmix or pmi2 (`dithc doctor` lists those of Slurm); outside "
            "a launcher, " + f"`{environment.UNSET}`"
        )
    else:
        fix = "make the launcher's number of ranks and the expected one the same"
    launcher = f"started by {started.launcher}" if started else "no launcher started this process"
    return user_error("number of ranks", got=f"{size} ({launcher})", expected=expected, fix=fix)
