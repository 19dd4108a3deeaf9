"""Operators of torch.library with fake results and gradients.

Contents: `custom` defines the operators, `gradients` their backward passes, `flat` one buffer for all gradients.
Invariants: names in `torch.ops.dithc` are stable. A gradient is in its place in the buffer or in separate memory.
Extending: a new operator needs an `OpSpec` in `spec.py` and an entry in `gradients.OF`.
"""

from dithc.hcops.autograd import gradients
from dithc.hcops.autograd.custom import AND_STREAM, OPERATORS, traced
from dithc.hcops.autograd.flat import abandon, flat_gradients, forget_gradients, give_place, storage_users

__all__ = [
    "AND_STREAM",
    "OPERATORS",
    "abandon",
    "flat_gradients",
    "forget_gradients",
    "give_place",
    "gradients",
    "storage_users",
    "traced",
]
