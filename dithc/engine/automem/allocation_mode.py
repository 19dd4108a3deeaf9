"""Mode in which torch allocates from fast memory: active in forward and backward passes (`set MemType` of Algorithm 1).

It needs the extension of `dithc.engine.memory.allocator`. Otherwise only HCOps operators allocate from the tiers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dithc.engine.memory import Pool, allocator


class AllocationMode:
    def __init__(self, pool: Pool) -> None:
        self._pool, self._is_in_backward = pool, False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Allocate from fast memory during a call of the model."""
        previous = allocator.enter(self._pool)
        try:
            yield
        finally:
            allocator.leave(previous)

    def enter_backward(self) -> None:
        """Enter once in the outermost backward pass, until it ends or fails."""
        if not self._is_in_backward:
            end = BackwardEndHook(partial(self._leave_backward, allocator.enter(self._pool)))
            torch.autograd.Variable._execution_engine.queue_callback(end)
            self._is_in_backward = True

    def _leave_backward(self, previous: Pool | None) -> None:
        self._is_in_backward = False
        allocator.leave(previous)


class BackwardEndHook:
    """Callback `end` at the end of a backward pass, also on failure: the engine calls it, or releases it if the pass fails."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def __call__(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self()
