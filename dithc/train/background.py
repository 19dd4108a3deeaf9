"""Work beside a training that must not hold it up: a thread of the lowest priority, on a core kept free if there is one."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dithc.hardware import discover, plan
from dithc.log import logger

LOWEST_PRIORITY = 19
# Where the core plan keeps cores free to move data: the best of them for this.
PURPOSES = ("offload", "load")
SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")
log = logger(__name__)


class Cancelled(Exception):
    """The work was told to end."""


class Background(threading.Thread):
    """Work under way in a thread of its own, or, by `work()`, in the caller's.

    Attributes:
        result: what the function returned.
        error: what it raised.
        seconds: how long it took, less the time in which others had its core.
    """

    def __init__(self, function: Callable[["Background"], Any], *, name: str) -> None:
        """Prepares the work; `start` starts it.

        Args:
            function: given this object, whose `check` it calls now and then.
            name: of the thread.
        """
        super().__init__(name=name, daemon=True)
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._function, self._cancelled = function, threading.Event()

    def run(self) -> None:
        """Gives way to everybody else, then works."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        if cpus := free_cpus():
            with suppress(OSError):  # a core that was taken from this process meanwhile
                os.sched_setaffinity(0, cpus)
        self.work()

    def work(self) -> None:
        """Does the work; keeps its result or its error."""
        begun, waited = time.monotonic(), _seconds_waited_for_a_core()
        try:
            self.result = self._function(self)
        except BaseException as error:  # whoever waits for the work gets it, whatever it is
            self.error = error
        self.seconds = max(0.0, time.monotonic() - begun - (_seconds_waited_for_a_core() - waited))

    def check(self) -> None:
        """Called by the work.

        Raises:
            Cancelled: it is to end.
        """
        if self._cancelled.is_set():
            raise Cancelled(self.name)

    def cancel(self) -> None:
        """Has the work end at its next check; returns when it has."""
        self._cancelled.set()
        self.wait()

    def wait(self) -> None:
        """Returns when the work has ended, or was never started in a thread."""
        if self.ident is not None:
            self.join()


def free_cpus() -> set[int]:
    """The logical CPUs of the core that the core plan keeps free to move data; empty without such a core."""
    machine = discover()
    reserved = dict(plan(machine, ranks_per_node=1).ranks[0].reserved)
    index = next((reserved[purpose] for purpose in PURPOSES if purpose in reserved), None)
    cpus = next((core.cpus for core in machine.cores if core.index == index), ())
    return set(cpus) & set(machine.limits.allowed_cpus)


def _seconds_waited_for_a_core() -> float:
    """How long this thread was ready to run and did not, since it began; 0 where the kernel does not say."""
    try:
        return int(SCHEDULER_STATISTICS.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
