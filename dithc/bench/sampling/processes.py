"""Processes that sample, and the protocol of their orders. A process without an order sleeps at a socket.

An order is a method of `Here` and its arguments. Orders for all ranks are sent to all simultaneously, and each rank
answers.
"""

import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.bench.bound_child import child_of, launch_line, message_counter
from dithc.bench.sampling.contenders import Contender, Where, named
from dithc.bench.sampling.decoders import Decoder
from dithc.bench.sampling.ways import Cell, Way, network
from dithc.comm import Group, traffic
from dithc.log import UserError, problem
from dithc.parallel import Team

GIVEN_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536"
}  # for glibc, which otherwise raises this threshold when memory is freed
LOOK_SECONDS = 0.5  # between two checks for the end of a process


class Here:
    """Variants and decoder of one process."""

    def __init__(self, group: Group) -> None:
        self._group, self._ways = group, dict[str, tuple[Contender, Way]]()
        self._teams: dict[str, Team] = {}
        self._model: tuple[Any, Any] = (None, None)
        self._decoder: Decoder | None = None

    def open(self, cell: Cell, names: Sequence[str]) -> dict[str, str]:
        """Build the variants of a cell that run here. Return the reasons of failures."""
        self._ways.clear()
        key = cell.model, tuple(cell.overrides.items()), cell.tokens
        if self._model[0] != key:
            self._model = None, None  # free the previous network first
            self._model = key, network(cell)
        model, reasons = self._model[1], dict[str, str]()
        for contender in named(names):
            reason = contender.absent(model, cell)
            if reason is None:
                self._ways[contender.name] = contender, contender.build(model, cell, self._team(contender))
            else:
                reasons[contender.name] = reason
        return reasons

    def output(self, name: str) -> tuple[NDArray[np.float32], dict[str, int | None]]:
        """Return the output of a step, and the bytes sent during it."""
        before = traffic.sent()
        found = self._ways[name][1].step()
        return found.numpy(), vars(traffic.sent().since(before))

    def step(self, name: str, loops: int) -> float:
        """Return the mean seconds of consecutive steps."""
        contender, way = self._ways[name]
        start = self._started(contender.where)
        for _ in range(loops):
            way.step()
        return (time.perf_counter() - start) / loops

    def image(self, name: str) -> tuple[float, NDArray[np.float32], float | None]:
        """Return the seconds, the image, and the fraction of computed blocks (None for all)."""
        contender, way = self._ways[name]
        start = self._started(contender.where)
        found = way.image()
        return time.perf_counter() - start, found.numpy(), way.ran

    def decoder(self, name: str, width: int, size: int) -> str | None:
        """Replace the decoder. Return the reason of a failure."""
        self._decoder = None
        try:
            self._decoder = Decoder(name, width=width, size=size, group=self._group)
        except (ImportError, RuntimeError, ValueError) as error:
            return f"{error}".replace("\n", " ")[:200]
        return None

    def decoded(self, way: str) -> tuple[NDArray[np.float32], dict[str, int | None]]:
        """Return the decoded image, and the bytes sent during decoding."""
        assert self._decoder is not None, "call `decoder` first"
        before = traffic.sent()
        found = self._decoder.decoded(way)
        return found.numpy(), vars(traffic.sent().since(before))

    def decode(self, way: str, where: Where) -> float:
        """Return seconds to decode an image."""
        assert self._decoder is not None, "call `decoder` first"
        start = self._started(where)
        self._decoder.decoded(way)
        return time.perf_counter() - start

    def peak(self, way: str) -> int | None:
        """See `Decoder.peak`."""
        assert self._decoder is not None, "call `decoder` first"
        return self._decoder.peak(way)

    def _started(self, where: Where) -> float:
        if where in ("every", "ranks"):
            self._group.barrier()
        return time.perf_counter()

    def _team(self, contender: Contender) -> Team:
        if contender.degrees is None:
            return Team()
        if contender.name not in self._teams:
            degrees = contender.degrees(self._group.size)
            self._teams[contender.name] = Team.of(self._group, degrees, [list(range(self._group.size))])
        return self._teams[contender.name]


def serve(address: str, group: Group) -> None:
    """Execute the orders from a socket until it closes."""
    here = Here(group)
    with Client(address, family="AF_UNIX") as line:
        line.send((group.size, group.rank))
        while (order := _next(line)) is not None:
            method, *arguments = order
            answer = getattr(here, method)(*arguments)
            with suppress(ConnectionError):  # the connection is closed, which the next order reports
                line.send(answer)


def _next(line: Connection) -> Any:
    """Return the next order; None after the last order or a closed connection."""
    try:
        return line.recv()
    except (EOFError, ConnectionError):
        return None


class Crew:
    """The ranks in order, and one process with all their cores."""

    def __init__(self, lines: dict[tuple[int, int], Connection], children: Sequence[Any]) -> None:
        self._ranks = [line for (size, _), line in sorted(lines.items()) if size > 1]
        self._alone = [line for (size, _), line in lines.items() if size == 1]
        self._children = children

    def ask(self, where: Where, *order: Any) -> list[Any]:
        """Send an order and return the answers of the addressed processes.

        Raises:
            UserError: a process has ended.
        """
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
    return problem("bench sampling: a process of the benchmark has ended", got=got, expected="an answer", fix=fix)


@contextmanager
def crew(*, ranks: int, cpus: int, is_for_memory: bool = False) -> Iterator[Crew]:
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
        found = Crew(lines, children)
        yield found
        found.dismiss()
