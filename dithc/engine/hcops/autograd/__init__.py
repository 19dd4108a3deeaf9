"""Operators of torch.library with fake results and gradients.

Contents: `custom_ops` defines the operators, `gradients` their backward passes, `grad_buffer` one buffer for all gradients.
Invariants: names in `torch.ops.dithc` are stable. A gradient is in its place in the buffer or in separate memory.
Extending: a new operator needs an `OpSpec` in `spec.py` and an entry in `gradients.FUNCTIONS`.
"""

from dithc.engine.hcops.autograd import gradients
from dithc.engine.hcops.autograd.custom_ops import AND_STREAM, OPERATORS, traced
from dithc.engine.hcops.autograd.grad_buffer import (
    assign_grad_view,
    flat_gradients,
    restore_grad,
    storage_use_count,
    zero_grad,
)

__all__ = [
    "AND_STREAM",
    "OPERATORS",
    "assign_grad_view",
    "flat_gradients",
    "grad_buffer",
    "gradients",
    "restore_grad",
    "storage_use_count",
    "traced",
    "zero_grad",
]
