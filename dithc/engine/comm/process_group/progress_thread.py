"""Communication thread of a process group: runs operations in the order of their submission.

An operation is a generator. It yields whether it progressed, receives the time it may wait, and returns its result.
Several operations are active simultaneously, so that a collective does not block a later send.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from dithc.core.logging import get_logger

log = get_logger(__name__)

# An operation yields whether it progressed, and receives the nanoseconds that it may wait.
Operation = Generator[bool, int, Any]

# Maximum sleep of a thread with a single operation; it then polls for new ones.
MAX_WAIT_NANOSECONDS = 200_000
# After this number of polls without progress (about 100 microseconds) the thread sleeps between polls, to free a core
# that it shares with computing threads.
POLLS_BEFORE_SLEEP = 50
SLEEP_SECONDS = 50e-6
WATCH_INTERVAL_SECONDS = 1.0
THREAD_NAME = "dithc-mpi"


@dataclass(eq=False)
class CommOperation:
    """Submitted operation.

    With `in_order` it waits for earlier operations with `in_order`. A collective has several steps. MPI and the exchange
    identify a step by its position in the group, which two interleaved collectives would mix up.
    """

    name: str
    steps: Operation
    done: Callable[[Any, BaseException | None], None]  # called once, on the communication thread: result, or error
    timeout_seconds: float  # without progress, after which it fails
    number: int | None = None  # index among the group's collectives, from 1
    in_order: bool = False
    waiting_since: float | None = field(default=None, init=False)  # `time.monotonic` of its start or last progress
    missing: str = field(default="", init=False)  # description of the ranks that it waits for
    begun: float | None = field(default=None, init=False)  # `time.perf_counter` of its first step
    ended: float | None = field(default=None, init=False)  # `time.perf_counter` of its completion or failure

    def advance(self, wait_ns: int) -> tuple[bool, bool]:
        """Run one step; return whether it progressed and whether it finished."""
        try:
            if self.begun is not None:
                progressed = self.steps.send(wait_ns)
            else:
                self.begun = time.perf_counter()
                progressed = next(self.steps)
        except StopIteration as end:
            self._end(end.value, None)
            return True, True
        except BaseException as error:  # the caller receives every error, and the thread continues
            self._end(None, error)
            return True, True
        now = time.monotonic()
        if progressed or self.waiting_since is None:
            self.waiting_since = now
        elif now > self.waiting_since + self.timeout_seconds:
            ranks = f": {self.missing}" if self.missing else ""
            seconds = f"{self.timeout_seconds:g} s"
            self.fail(TimeoutError(f"{self.name}: not all ranks took part within {seconds}{ranks}"))
            return True, True
        return progressed, False

    def fail(self, error: BaseException) -> None:
        self.steps.close()
        self._end(None, error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.ended = time.perf_counter()
        self.done(result, error)


class ProgressThread:
    """Thread that runs operations until it is stopped."""

    def __init__(
        self, name: str, *, cpu: int | None = None, watch: Callable[[Sequence[CommOperation]], None] | None = None
    ) -> None:
        """Start the thread, on the logical CPU `cpu` if it is set.

        `watch` is called with the active operations every second without progress; an exception ends all operations.
        """
        self._watch, self._next_watch = watch, 0.0
        self._queue: queue.SimpleQueue[CommOperation | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        if cpu is not None:
            self.bind(cpu)

    def bind(self, cpu: int) -> None:
        """Bind the thread to this logical CPU; log a warning if the system rejects it."""
        thread = self._thread.native_id
        assert thread is not None, "the thread has been started"
        try:
            os.sched_setaffinity(thread, {cpu})
        except OSError as error:
            log.warning("communication thread: cannot be bound to CPU %d: %s", cpu, error)
        else:
            log.info("communication thread: bound to CPU %d", cpu)

    def submit(self, operation: CommOperation) -> None:
        """Submit an operation to the thread; RuntimeError if the thread was stopped."""
        if self._stopped:
            raise RuntimeError(f"{operation.name}: the process group was destroyed")
        self._queue.put(operation)

    def stop(self, *, timeout_seconds: float) -> bool:
        """Complete the active operations and end the thread; return whether it ended in time."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        torch.set_num_threads(1)  # otherwise the first torch operator here starts a second OpenMP pool
        # Kernel name of the thread, in top and in the report of thread placement; at most 15 characters.
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)
        active: list[CommOperation] = []
        stopping, idle_polls = False, 0
        while active or not stopping:
            stopping = self._receive(active, wait=not active and not stopping) or stopping
            progressed = self._advance(active)
            idle_polls = 0 if progressed else idle_polls + 1
            if active and idle_polls > POLLS_BEFORE_SLEEP:
                self._call_watch(active)
                time.sleep(SLEEP_SECONDS)

    def _receive(self, active: list[CommOperation], *, wait: bool) -> bool:
        """Move new operations into `active`; return whether the thread should end."""
        operations = [self._queue.get()] if wait else []
        with suppress(queue.Empty):
            while True:
                operations.append(self._queue.get_nowait())
        active += [operation for operation in operations if operation is not None]
        return None in operations

    def _call_watch(self, active: list[CommOperation]) -> None:
        now = time.monotonic()
        if self._watch is None or now < self._next_watch:
            return
        self._next_watch = now + WATCH_INTERVAL_SECONDS
        try:
            self._watch(active)
        except Exception as error:
            for operation in active:
                operation.fail(error)
            active.clear()

    def _advance(self, active: list[CommOperation]) -> bool:
        has_progress, first = False, next((operation for operation in active if operation.in_order), None)
        runnable = [operation for operation in active if operation is first or not operation.in_order]
        wait_ns = MAX_WAIT_NANOSECONDS if len(runnable) == 1 and self._queue.empty() else 0
        for operation in runnable:
            progressed, finished = operation.advance(wait_ns)
            has_progress |= progressed
            if finished:
                active.remove(operation)
        return has_progress


# Typed as Any because torch has few annotations for it.
_WORK: Any = Work


class MpiWork(_WORK):  # type: ignore[misc]
    """Handle of an operation. Its future is a list of tensors; `wait` raises the error of the operation."""

    def __init__(self, ended: "Future[Any]", operation: CommOperation) -> None:
        super().__init__()
        # An exception set on a future crashes torch's C++ side; an exception raised by a callback is passed on
        # correctly.
        self._ended, self._future, self._operation = ended, ended.then(_unwrap), operation

    @property
    def begun(self) -> float | None:
        """`time.perf_counter` of the first step; None before."""
        return self._operation.begun

    @property
    def ended(self) -> float | None:
        """`time.perf_counter` of completion or failure; None before."""
        return self._operation.ended

    def wait(self, timeout: timedelta | None = None) -> bool:
        _unwrap(self._ended)
        return True

    def get_future(self) -> "Future[Any]":
        return self._future

    def is_completed(self) -> bool:
        return self._ended.done()

    def is_success(self) -> bool:
        return self._ended.done() and self._ended.value()[1] is None

    def exception(self) -> BaseException | None:
        return self._ended.value()[1] if self._ended.done() else None

    def result(self) -> Any:
        return _unwrap(self._ended)


def _unwrap(future: "Future[Any]") -> Any:
    result, error = future.wait()
    if error is not None:
        raise error
    return result
