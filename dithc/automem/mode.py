"""Whether torch's own tensors come from fast memory too: on while the model runs, forward and backward, and off outside.

This is `set MemType` of Algorithm 1. It needs the extension of `dithc.memory.allocator`; without it only the operators of HCOps
take their memory from the tiers.
"""

from collections.abc import Callable
from functools import partial

import torch

from dithc.memory import Pool, allocator


class Mode:
    """The mode of one model's thread."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._is_in_backward = pool, False
        self.is_available = allocator.available()

    def enter(self) -> Pool | None:
        """Before a call of the model; what it returns is for `leave`."""
        return allocator.enter(self._pool) if self.is_available else None

    def leave(self, before: Pool | None) -> None:
        """After a call of the model."""
        if self.is_available:
            allocator.leave(before)

    def enter_backward(self) -> None:
        """In a backward pass, once in each, the outermost counts; the mode ends with that pass, also where it fails."""
        if self.is_available and not self._is_in_backward:
            end = PassEnd(partial(self._leave_backward, allocator.enter(self._pool)))
            torch.autograd.Variable._execution_engine.queue_callback(end)
            self._is_in_backward = True

    def _leave_backward(self, before: Pool | None) -> None:
        self._is_in_backward = False
        allocator.leave(before)


class PassEnd:
    """What is given to the engine in a backward pass: `end` is called once, when that pass is over, also where it failed.

    The engine calls it at the end of a pass, and lets go of it when a pass fails.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def __call__(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self()
