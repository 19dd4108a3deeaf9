"""Operators of torch.library with fake results and gradients.

Contents: `custom_ops` defines the operators, `gradients` their backward passes, `grad_buffer` one buffer for all gradients.
Invariants: names in `torch.ops.dithc` are stable. A gradient is in its place in the buffer or in separate memory.
Extending: a new operator needs an `OpSpec` in `spec.py` and an entry in `gradients.OF`.
"""

from dithc.engine.hcops.autograd import gradients
from dithc.engine.hcops.autograd.custom_ops import AND_STREAM, OPERATORS, traced
from dithc.engine.hcops.autograd.grad_buffer import abandon, flat_gradients, forget_gradients, give_place, storage_users

__all__ = [
    "AND_STREAM",
    "OPERATORS",
    "abandon",
    "flat_gradients",
    "forget_gradients",
    "give_place",
    "grad_buffer",
    "gradients",
    "storage_users",
    "traced",
]
