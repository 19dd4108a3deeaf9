"""Updates of tensors in a file tier during the next forward pass (Deep Optimizer States, arXiv:2410.21316).

An update reads and writes all state of the optimizer and computes little, so that the disk determines its time. A forward
pass uses the disk little. A thread therefore updates the weights in the order of their use, and the pass waits for the
weights of each unit.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from threading import Condition, Thread, current_thread
from typing import TypeAlias

from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine.memory import StreamedTensors
from dithc.engine.native import contexts

Columns: TypeAlias = Sequence[Sequence[Tensor]]
Operation: TypeAlias = Callable[[Columns], None]
log = get_logger(__name__)


class DeferredUpdates:
    """Elementwise updates by a thread. A failed update is an error of every later wait."""

    def __init__(self, streamed: StreamedTensors) -> None:
        self._streamed = streamed
        self._pending = set[int]()  # addresses of weights
        self._changed = Condition()
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self.stall_seconds = 0.0  # of callers
        self.hidden_seconds = 0.0  # waits of the thread for copies

    def start(self, columns: Columns, operation: Operation, *, read_only: Collection[int]) -> None:
        """Update tensors in memory, and start to update tensors of a file in the order of the rows.

        The first column holds the weights. Raises like `wait`.
        """
        self.wait()
        addresses = [weight.data_ptr() for weight in columns[0]]
        parts = self._streamed.parts(columns, read_only=read_only, done=lambda row: self._complete(addresses[row]))
        operation(next(parts))  # creates the buffers while fast memory has space
        thread = Thread(target=self._run, args=(parts, operation), name="dithc-update", daemon=True)
        self._pending = set(addresses)
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread
            self._run(parts, operation)
            self._raise_error()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Wait until all tensors are complete.

        Raises:
            OSError: the disk failed; weights and state are partly updated.
        """
        if self._thread is not None:
            start = time.perf_counter()
            self._thread.join()
            self._thread = None
            self.stall_seconds += time.perf_counter() - start
        self._raise_error()

    def wait_for(self, weights: Iterable[Tensor]) -> None:
        """Wait until these weights are complete; raises like `wait`."""
        if self._thread is not None:
            addresses, start = {weight.data_ptr() for weight in weights}, time.perf_counter()
            with self._changed:
                self._changed.wait_for(lambda: self._pending.isdisjoint(addresses))
            self.stall_seconds += time.perf_counter() - start
        self._raise_error()

    def close(self) -> None:
        """Finish the updates; an error is logged, and raised by later calls."""
        if self._thread is current_thread():
            return  # it deleted the last reference to the model
        try:
            self.wait()
        except Exception as error:
            log.warning("the last update of weights and optimizer state failed: %s", str(error))

    def _run(self, parts: Iterator[Columns], operation: Operation) -> None:
        waited = self._streamed.wait_seconds
        try:
            with contexts.single_thread():
                for part in parts:
                    self.hidden_seconds += self._streamed.wait_seconds - waited
                    waited = self._streamed.wait_seconds
                    operation(part)
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("update of weights and optimizer state")
            self._error = error
        self.hidden_seconds += self._streamed.wait_seconds - waited
        with self._changed:
            self._pending.clear()
            self._changed.notify_all()

    def _complete(self, address: int) -> None:
        with self._changed:
            self._pending.discard(address)
            self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # its frames hold tensors
