"""Background work that yields to training: on an idle or reserved core."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dithc.core.logging import get_logger
from dithc.engine.hardware import discover_machine, plan_cores

LOWEST_PRIORITY = 19
THREAD_NAME = "dithc-idle"  # in top, and for `CpuCounters`
STARVED_SECONDS, STARVED_SHARE = 5.0, 0.5  # a thread without a core for this share of this time restarts elsewhere
SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")
log = get_logger(__name__)


class Canceled(Exception):
    """The work was canceled."""


class Background(threading.Thread):
    """Work in a separate thread, or in the calling one by `work()`; `seconds` excludes waits for the core."""

    def __init__(self, function: Callable[["Background"], Any], *, name: str) -> None:
        """Prepare the work; `function` receives this object and calls its `check` regularly."""
        super().__init__(name=name, daemon=True)
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._function, self._canceled = function, threading.Event()
        self._lock, self._is_awaited = threading.Lock(), False

    def run(self) -> None:
        """Lower the priority, then work.

        The idle scheduling class yields immediately. The lowest nice value alone delays a compute thread by milliseconds.
        """
        with suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)
        with self._lock:
            if not self._is_awaited:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
                with suppress(OSError):  # a container may reject the call
                    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if cores := free_cores():
            with suppress(OSError):  # the core may have been removed from this process
                os.sched_setaffinity(0, cores[-1])
        self.work()

    def work(self) -> None:
        start, wait_before = time.monotonic(), _core_wait_seconds()
        try:
            self.result = self._function(self)
        except BaseException as error:  # waiters receive every error
            self.error = error
        self.seconds = max(0.0, time.monotonic() - start - (_core_wait_seconds() - wait_before))

    def check(self) -> None:
        """Raise Canceled if `cancel` was called; the work calls this."""
        if self._canceled.is_set():
            raise Canceled(self.name)

    def cancel(self) -> None:
        """Stop the work at its next check, and wait for it."""
        self._canceled.set()
        if self.ident is not None:
            self.join()

    def wait(self) -> None:
        """Wait until the work has ended; return immediately if no thread was started.

        The thread continues at normal priority, because other processes on its core may leave it no time. If the
        system rejects that, a thread that rarely runs is canceled, and the work restarts in the calling thread.
        """
        if self.native_id is None or not self.is_alive():
            return
        try:
            with self._lock:
                self._is_awaited = True
                os.sched_setscheduler(self.native_id, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, self.native_id, os.getpriority(os.PRIO_PROCESS, 0))
        except OSError:
            while self.is_alive():
                delayed = _core_wait_seconds(self.native_id)
                self.join(STARVED_SECONDS)
                if _core_wait_seconds(self.native_id) - delayed > STARVED_SHARE * STARVED_SECONDS:
                    self._restart()
        self.join()

    def _restart(self) -> None:
        """Repeat the work of a thread without a core in the calling thread, unless the work ends."""
        self._canceled.set()
        self.join()
        if isinstance(self.error, Canceled):
            log.warning(f"{self.name}: other processes use its core; it restarts in the training thread")
            self._canceled.clear()
            self.error = None
            self.work()


def free_cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs of each allowed core without compute threads, for data movement (`dithc.engine.native`)."""
    machine = discover_machine()
    allowed, (plan,) = set(machine.limits.allowed_cpus), plan_cores(machine, ranks_per_node=1).ranks
    cpus_of = {core.index: tuple(cpu for cpu in core.cpus if cpu in allowed) for core in machine.cores}
    return [cpus_of[index] for _, index in plan.reserved]


def _core_wait_seconds(thread: int | None = None) -> float:
    """Return how long a thread, by default this one, was runnable without a core; 0 if the kernel does not report it."""
    path = SCHEDULER_STATISTICS if thread is None else Path(f"/proc/self/task/{thread}/schedstat")
    try:
        return int(path.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
