"""Whether torch's own tensors come from fast memory too: on while the model runs, forward and backward, and off outside.

This is `set MemType` of Algorithm 1. It needs the extension of `dithc.memory.allocator`; without it only the operators of HCOps
take their memory from the tiers.
"""

import torch

from dithc.memory import Pool, allocator


class Mode:
    """The mode of one model's thread."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._task = pool, -1
        self._before: Pool | None = None
        self.is_available = allocator.available()

    def enter(self) -> Pool | None:
        """Before a call of the model; what it returns is for `leave`. A backward pass that failed is over then."""
        if not self.is_available:
            return None
        if torch._C._current_graph_task_id() < 0:
            self.leave_backward()
        return allocator.enter(self._pool)

    def leave(self, before: Pool | None) -> None:
        """After a call of the model."""
        if self.is_available:
            allocator.leave(before)

    def enter_backward(self) -> None:
        """In a backward pass, once in each, the outermost counts."""
        if self.is_available and self._task < 0:
            self._task = torch._C._current_graph_task_id()
            self._before = allocator.enter(self._pool)

    def leave_backward(self) -> None:
        """After a backward pass."""
        if self._task >= 0:
            self._task = -1
            allocator.leave(self._before)
