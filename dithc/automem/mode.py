"""Whether torch's own tensors come from fast memory too: on while the model runs, forward and backward, and off outside.

This is `set MemType` of Algorithm 1. It needs the extension of `dithc.memory.allocator`; without it only the operators of HCOps
take their memory from the tiers.
"""

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
            torch.autograd.Variable._execution_engine.queue_callback(_Pass(self, allocator.enter(self._pool)))
            self._is_in_backward = True

    def _leave_backward(self, before: Pool | None) -> None:
        self._is_in_backward = False
        allocator.leave(before)


class _Pass:
    """A backward pass: what the engine is to call at its end, and lets go of when the pass is over, also where that failed."""

    def __init__(self, mode: Mode, before: Pool | None) -> None:
        self._mode, self._before = mode, before

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        self._mode._leave_backward(self._before)
