"""The operators as autograd and torch's tracers see them: custom ops, their gradients and fakes.

What: `custom` calls an operator of the active back end with its gradient, `gradients` says what each keeps for its backward pass,
and `flat` holds the one buffer into which the gradients of all matrices are written.
Invariants: names in `torch.ops.dithc` stay; a gradient is written where it belongs or into memory of its own, never both.
How to change it: a new operator has a line in `custom.py`, a fake in `fakes.py`, a backward pass in `gradients.py`.
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
