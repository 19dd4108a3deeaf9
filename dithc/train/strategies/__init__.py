"""How ranks share a training: cftp, dp, dp+tp.

What: `Strategy` is what model, loop and checkpoints know of it; `Layout` says which rank does what, pure arithmetic.
Invariants: a strategy changes where work is done, not what is computed, but for rounding.
How to change it: a strategy is a branch of `strategy.py`; the sharing of layers is in `tensor.py`.
"""

from dithc.train.strategies.layout import Layout
from dithc.train.strategies.strategy import Strategy, layout_on

__all__ = ["Layout", "Strategy", "layout_on"]
