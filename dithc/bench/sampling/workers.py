"""Processes that sample, and the protocol of their orders. A process without an order sleeps at a socket.

An order is a method of `Worker` and its arguments. Orders for all ranks are sent to all simultaneously, and each rank
answers.
"""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dithc.bench.child_process import launch_argv, message_counter, run_child
from dithc.bench.sampling import diffusers_pipeline
from dithc.bench.sampling.decoders import VARIANTS, Decoder
from dithc.bench.sampling.runners import SamplingCase, network
from dithc.bench.sampling.variants import DIFFUSERS, Role, SamplingVariant, named
from dithc.core.logging import UserError, user_error
from dithc.engine.comm import Group, traffic
from dithc.sample.parallel import SamplingGroup

# For glibc, which otherwise raises this threshold when memory is freed.
MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": "65536"}
POLL_SECONDS = 0.5  # between two checks for the end of a process


class Outcome(NamedTuple):
    """Result of one or several equal runs of a variant in a process.

    Attributes:
        seconds: mean of the runs.
        sent: bytes sent during the runs.
    """

    seconds: float
    output: NDArray[np.float32]
    sent: dict[str, int | None]


class Worker:
    """Variants of sampling, or of decoding, in one process."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._variants: dict[str, tuple[SamplingVariant, Callable[[], Tensor]]] = {}
        self._teams: dict[str, SamplingGroup] = {}
        self._model: tuple[Any, Any] = (None, None)
        self._decoder: Decoder | None = None

    def open(self, cell: SamplingCase, names: Sequence[str], is_image: bool) -> dict[str, str]:
        """Build the variants of a cell that run here, for images or for steps. Return the reasons of failures."""
        self._variants.clear()
        key = cell.model, tuple(cell.overrides.items()), cell.tokens
        if self._model[0] != key:
            self._model = None, None  # free the previous network first
            self._model = key, network(cell)
        model, reasons = self._model[1], dict[str, str]()
        for variant in named(names):
            reason = diffusers_pipeline.skip_reason(model, cell) if variant.name == DIFFUSERS else None
            if reason is None:
                runner = variant.build(model, cell, self._team(variant))
                self._variants[variant.name] = variant, runner.image if is_image else runner.step
            else:
                reasons[variant.name] = reason
        return reasons

    def open_decoder(self, name: str, width: int, size: int) -> dict[str, str]:
        """Replace all variants by the variants of decoding. Return the reason of a failure by the decoder's name."""
        self._variants.clear()
        self._decoder = None
        try:
            self._decoder = Decoder(name, width=width, size=size, group=self._group)
        except (ImportError, RuntimeError, ValueError) as error:
            return {name: f"{error}".replace("\n", " ")[:200]}
        self._variants = {one.name: (one, partial(self._decoder.decode, one.name)) for one in VARIANTS}
        return {}

    def run(self, name: str, loops: int) -> Outcome:
        """Run a variant several times."""
        variant, call = self._variants[name]
        if variant.role in ("every", "ranks"):
            self._group.barrier()
        initial = traffic.sent()
        start = time.perf_counter()
        for _ in range(loops):
            output = call()
        seconds = (time.perf_counter() - start) / loops
        return Outcome(seconds, output.numpy(), vars(traffic.sent().since(initial)))

    def peak(self, variant: str) -> int | None:
        assert self._decoder is not None, "call `open_decoder` first"
        return self._decoder.peak(variant)

    def _team(self, variant: SamplingVariant) -> SamplingGroup:
        if variant.degrees is None:
            return SamplingGroup()
        if variant.name not in self._teams:
            degrees = variant.degrees(self._group.size)
            self._teams[variant.name] = SamplingGroup.of(self._group, degrees, [list(range(self._group.size))])
        return self._teams[variant.name]


def run_worker(address: str, group: Group) -> None:
    """Execute the orders from a socket until it closes."""
    worker = Worker(group)
    with Client(address, family="AF_UNIX") as connection:
        connection.send((group.size, group.rank))
        while True:
            try:
                order = connection.recv()
            except (EOFError, ConnectionError):
                return
            if order is None:
                return
            method, *arguments = order
            answer = getattr(worker, method)(*arguments)
            with suppress(ConnectionError):  # the connection is closed, which the next order reports
                connection.send(answer)


class WorkerPool:
    """The ranks in order, and one process with all their cores."""

    def __init__(self, connections: dict[tuple[int, int], Connection], children: Sequence[Any]) -> None:
        self._ranks = [connection for (size, _), connection in sorted(connections.items()) if size > 1]
        self._single = [connection for (size, _), connection in connections.items() if size == 1]
        self._children = children

    def request(self, role: Role, *order: Any) -> list[Any]:
        """Send an order and return the answers of the addressed processes."""
        connections = {"first": self._ranks[:1], "alone": self._single}.get(role, self._ranks)
        for connection in connections:
            connection.send(order)
        return [self._receive(connection) for connection in connections]

    def stop(self) -> None:
        """End the processes."""
        for connection in (*self._ranks, *self._single):
            with suppress(OSError):
                connection.send(None)

    def _receive(self, connection: Connection) -> Any:
        try:
            while not connection.poll(POLL_SECONDS):
                check_alive(self._children)
            return connection.recv()
        except (EOFError, ConnectionResetError):
            for child in self._children:  # the ended process has printed the reason
                with suppress(Exception):
                    child.wait(timeout=POLL_SECONDS)
            raise _exit_error("a closed connection") from None


def check_alive(children: Sequence[Any]) -> None:
    """Raise if a process has ended."""
    for child in children:
        if (status := child.poll()) is not None:
            raise _exit_error(f"status {status}")


def _exit_error(got: str) -> UserError:
    fix = "see its messages above; run `dithc doctor` to check MPI"
    return user_error("bench sampling: a process of the benchmark has ended", got=got, expected="an answer", fix=fix)


@contextmanager
def worker_pool(*, ranks: int, cpus: int, is_for_memory: bool = False) -> Iterator[WorkerPool]:
    """Start the ranks with `cpus` threads each and one process with all threads. End them at exit.

    For memory measurements only the ranks start. Freed arrays return to the system immediately, so that peaks are
    exact.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dithc-sampling-")))
        address = str(folder / "orders")
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(ranks + 1)
        listener.settimeout(POLL_SECONDS)
        arguments = ["sampling", "--on-ranks", "--at", address]
        variables = MALLOC_VARIABLES if is_for_memory else message_counter(folder)
        starts = [launch_argv(arguments, ranks=ranks, cpus=cpus, variables=variables)]
        starts += [] if is_for_memory else [launch_argv(arguments, ranks=1, cpus=ranks * cpus)]
        children = [stack.enter_context(run_child(argv)) for argv in starts]
        connections: dict[tuple[int, int], Connection] = {}
        while len(connections) < ranks + len(starts) - 1:
            with suppress(TimeoutError):
                connection = Connection(listener.accept()[0].detach())
                connections[connection.recv()] = stack.enter_context(connection)
                continue
            check_alive(children)
        pool = WorkerPool(connections, children)
        yield pool
        pool.stop()
