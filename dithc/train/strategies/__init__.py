"""How ranks share the training of any module: cftp, dp, of a DiT dp+tp; and the optimizer's state, with ZeRO-1.

What: `Strategy` is what model, loop and checkpoints know of it; `Layout` says which rank does what, pure arithmetic; `Zero` whose
share of the optimizer's state is whose.
Invariants: a strategy changes where work is done, not what is computed, but for rounding.
How to change it: a strategy is a branch of `strategy.py`; the sharing of layers is in `tensor.py`; what ranks must have the same
is compared in `alike.py`, what the first passes of a module tell is seen in `settling.py`.
"""

from dithc.train.strategies.layout import Layout
from dithc.train.strategies.strategy import Strategy, layout_on
from dithc.train.strategies.zero import Zero

__all__ = ["Layout", "Strategy", "Zero", "layout_on"]
