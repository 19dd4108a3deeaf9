"""The communication thread of a process group: runs its operations in the order in which they were asked for.

An operation is a generator. It yields whether it got on since the last yield, receives how long it may wait, and returns its
result; so several operations are under way at once, and a send that was asked for after a collective is not held up by it.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch

from dithc.log import logger

log = logger(__name__)

# An operation: yields whether it got on, is sent the nanoseconds it may wait.
Operation = Generator[bool, int, Any]

# A thread with one operation to wait for may sleep this long at a time; it then looks for new ones.
PATIENCE_NANOSECONDS = 200_000
# After this many looks without progress (about 100 microseconds) the thread sleeps between looks, so that a core that it shares
# goes to computing.
LOOKS_BEFORE_SLEEP = 50
SLEEP_SECONDS = 50e-6
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(eq=False)
class Job:
    """An operation on its way.

    Attributes:
        name: for messages.
        operation: the generator.
        done: called once, on the communication thread, with the result and None, or with None and the error.
        deadline: of `time.monotonic`.
    """

    name: str
    operation: Operation
    done: Callable[[Any, BaseException | None], None]
    deadline: float
    timeout_seconds: float
    started: bool = field(default=False)

    def advance(self, patience: int) -> tuple[bool, bool]:
        """One step; returns whether it got on, and whether it is finished."""
        try:
            if self.started:
                progressed = self.operation.send(patience)
            else:
                self.started = True
                progressed = next(self.operation)
        except StopIteration as end:
            self.done(end.value, None)
            return True, True
        except BaseException as error:  # the caller gets it, whatever it is; the thread goes on
            self.done(None, error)
            return True, True
        if not progressed and time.monotonic() > self.deadline:
            self.fail(TimeoutError(f"{self.name}: not all ranks took part within {self.timeout_seconds:g} s"))
            return True, True
        return progressed, False

    def fail(self, error: BaseException) -> None:
        """Ends the operation with an error."""
        self.operation.close()
        self.done(None, error)


class Service:
    """A thread that runs jobs until it is stopped."""

    def __init__(self, name: str, *, cpu: int | None = None, watch: Callable[[], None] | None = None) -> None:
        """Starts the thread.

        Args:
            name: of the thread.
            cpu: logical CPU to run on; None leaves it to the system.
            watch: called every second in which nothing gets on; what it raises ends all jobs under way.
        """
        self._watch, self._next_look = watch, 0.0
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._cpu = cpu
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Hands a job to the thread.

        Raises:
            RuntimeError: the service was stopped.
        """
        if self._stopped:
            raise RuntimeError(f"{job.name}: the process group was destroyed")
        self._queue.put(job)

    def stop(self, *, timeout_seconds: float) -> bool:
        """Lets the jobs under way finish and ends the thread; returns whether it has ended in time."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        torch.set_num_threads(1)  # else the first torch operator here starts a second OpenMP pool
        if self._cpu is not None:
            try:
                os.sched_setaffinity(0, {self._cpu})
            except OSError as error:
                log.warning("communication thread: cannot be bound to CPU %d: %s", self._cpu, error)
        active: list[Job] = []
        stopping, idle_looks = False, 0
        while active or not stopping:
            stopping = self._take(active, wait=not active and not stopping) or stopping
            progressed = self._advance(active)
            idle_looks = 0 if progressed else idle_looks + 1
            if active and idle_looks > LOOKS_BEFORE_SLEEP:
                self._look_around(active)
                time.sleep(SLEEP_SECONDS)

    def _take(self, active: list[Job], *, wait: bool) -> bool:
        """Moves new jobs into `active`; returns whether the thread was asked to end."""
        stopping = False
        while True:
            try:
                job = self._queue.get(block=wait)
            except queue.Empty:
                return stopping
            wait = False
            if job is None:
                stopping = True
            else:
                active.append(job)

    def _look_around(self, active: list[Job]) -> None:
        now = time.monotonic()
        if self._watch is None or now < self._next_look:
            return
        self._next_look = now + SECONDS_BETWEEN_LOOKS
        try:
            self._watch()
        except Exception as error:
            for job in active:
                job.fail(error)
            active.clear()

    def _advance(self, active: list[Job]) -> bool:
        patience = PATIENCE_NANOSECONDS if len(active) == 1 and self._queue.empty() else 0
        anything = False
        for job in list(active):
            progressed, finished = job.advance(patience)
            anything |= progressed
            if finished:
                active.remove(job)
        return anything
