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

from dithc.bench.child_process import child_of, launch_line, message_counter
from dithc.bench.sampling import diffusers_pipeline
from dithc.bench.sampling.decoders import WAYS, Decoder
from dithc.bench.sampling.runners import SamplingCase, network
from dithc.bench.sampling.variants import DIFFUSERS, SamplingVariant, Where, named
from dithc.core.logging import UserError, user_error
from dithc.engine.comm import Group, traffic
from dithc.sample.parallel import SamplingGroup

GIVEN_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536"
}  # for glibc, which otherwise raises this threshold when memory is freed
LOOK_SECONDS = 0.5  # between two checks for the end of a process


class Outcome(NamedTuple):
    """Result of one or several equal runs of a variant in a process.

    Attributes:
        seconds: mean of the runs.
        sent: bytes sent during the runs.
        ran: fraction of computed blocks; None for all.
    """

    seconds: float
    output: NDArray[np.float32]
    sent: dict[str, int | None]
    ran: float | None


class Worker:
    """Variants of sampling, or of decoding, in one process."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ways: dict[str, tuple[SamplingVariant, Callable[[], Tensor], Any]] = {}
        self._teams: dict[str, SamplingGroup] = {}
        self._model: tuple[Any, Any] = (None, None)
        self._decoder: Decoder | None = None

    def open(self, cell: SamplingCase, names: Sequence[str], is_image: bool) -> dict[str, str]:
        """Build the variants of a cell that run here, for images or for steps. Return the reasons of failures."""
        self._ways.clear()
        key = cell.model, tuple(cell.overrides.items()), cell.tokens
        if self._model[0] != key:
            self._model = None, None  # free the previous network first
            self._model = key, network(cell)
        model, reasons = self._model[1], dict[str, str]()
        for contender in named(names):
            reason = diffusers_pipeline.absent(model, cell) if contender.name == DIFFUSERS else None
            if reason is None:
                way = contender.build(model, cell, self._team(contender))
                self._ways[contender.name] = contender, way.image if is_image else way.step, way
            else:
                reasons[contender.name] = reason
        return reasons

    def open_decoder(self, name: str, width: int, size: int) -> dict[str, str]:
        """Replace all variants by the variants of decoding. Return the reason of a failure by the decoder's name."""
        self._ways.clear()
        self._decoder = None
        try:
            self._decoder = Decoder(name, width=width, size=size, group=self._group)
        except (ImportError, RuntimeError, ValueError) as error:
            return {name: f"{error}".replace("\n", " ")[:200]}
        self._ways = {way.name: (way, partial(self._decoder.decoded, way.name), self._decoder) for way in WAYS}
        return {}

    def run(self, name: str, loops: int) -> Outcome:
        """Run a variant several times."""
        contender, call, way = self._ways[name]
        if contender.where in ("every", "ranks"):
            self._group.barrier()
        before = traffic.sent()
        start = time.perf_counter()
        for _ in range(loops):
            found = call()
        seconds = (time.perf_counter() - start) / loops
        return Outcome(seconds, found.numpy(), vars(traffic.sent().since(before)), way.ran)

    def peak(self, way: str) -> int | None:
        """See `Decoder.peak`."""
        assert self._decoder is not None, "call `open_decoder` first"
        return self._decoder.peak(way)

    def _team(self, contender: SamplingVariant) -> SamplingGroup:
        if contender.degrees is None:
            return SamplingGroup()
        if contender.name not in self._teams:
            degrees = contender.degrees(self._group.size)
            self._teams[contender.name] = SamplingGroup.of(self._group, degrees, [list(range(self._group.size))])
        return self._teams[contender.name]


def run_worker(address: str, group: Group) -> None:
    """Execute the orders from a socket until it closes."""
    here = Worker(group)
    with Client(address, family="AF_UNIX") as line:
        line.send((group.size, group.rank))
        while True:
            try:
                order = line.recv()
            except (EOFError, ConnectionError):
                return
            if order is None:
                return
            method, *arguments = order
            answer = getattr(here, method)(*arguments)
            with suppress(ConnectionError):  # the connection is closed, which the next order reports
                line.send(answer)


class WorkerPool:
    """The ranks in order, and one process with all their cores."""

    def __init__(self, lines: dict[tuple[int, int], Connection], children: Sequence[Any]) -> None:
        self._ranks = [line for (size, _), line in sorted(lines.items()) if size > 1]
        self._alone = [line for (size, _), line in lines.items() if size == 1]
        self._children = children

    def ask(self, where: Where, *order: Any) -> list[Any]:
        """Send an order and return the answers of the addressed processes."""
        lines = {"first": self._ranks[:1], "alone": self._alone}.get(where, self._ranks)
        for line in lines:
            line.send(order)
        return [self._answer(line) for line in lines]

    def dismiss(self) -> None:
        """End the processes."""
        for line in (*self._ranks, *self._alone):
            with suppress(OSError):
                line.send(None)

    def _answer(self, line: Connection) -> Any:
        try:
            while not line.poll(LOOK_SECONDS):
                look(self._children)
            return line.recv()
        except (EOFError, ConnectionResetError):
            for child in self._children:  # the ended process has printed the reason
                with suppress(Exception):
                    child.wait(timeout=LOOK_SECONDS)
            raise _ended("a closed connection") from None


def look(children: Sequence[Any]) -> None:
    """Raise if a process has ended."""
    for child in children:
        if (status := child.poll()) is not None:
            raise _ended(f"status {status}")


def _ended(got: str) -> UserError:
    fix = "see its messages above; run `dithc doctor` to check MPI"
    return user_error("bench sampling: a process of the benchmark has ended", got=got, expected="an answer", fix=fix)


@contextmanager
def crew(*, ranks: int, cpus: int, is_for_memory: bool = False) -> Iterator[WorkerPool]:
    """Start the ranks with `cpus` threads each and one process with all threads. End them at exit.

    For memory measurements only the ranks start. Freed arrays return to the system immediately, so that peaks are
    exact.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dithc-sampling-")))
        address = str(folder / "orders")
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.bind(address)
        door.listen(ranks + 1)
        door.settimeout(LOOK_SECONDS)
        words = ["sampling", "--on-ranks", "--at", address]
        variables = GIVEN_BACK if is_for_memory else message_counter(folder)
        starts = [launch_line(words, ranks=ranks, cpus=cpus, variables=variables)]
        starts += [] if is_for_memory else [launch_line(words, ranks=1, cpus=ranks * cpus)]
        children = [stack.enter_context(child_of(line)) for line in starts]
        lines: dict[tuple[int, int], Connection] = {}
        while len(lines) < ranks + len(starts) - 1:
            with suppress(TimeoutError):
                line = Connection(door.accept()[0].detach())
                lines[line.recv()] = stack.enter_context(line)
                continue
            look(children)
        found = WorkerPool(lines, children)
        yield found
        found.dismiss()
