"""The update of the weights: AdamW, or Muon beside it, over all or a share of them, and the averages that follow them.

What: `Optimizer` clips and updates, `Zero` and `RunHolding` say whose share is whose, `Ema` follows in a `Home`.
Invariants: master weights, moments and average are fp32; a share changes who updates, never what.
How to change it: another optimizer is a file like `muon.py`, called from `optimizer.py`.
"""

from dithc.train.optimizer.ema import Ema, Home, anywhere, initial_share
from dithc.train.optimizer.optimizer import MOMENTS, Optimizer
from dithc.train.optimizer.zero import RunHolding, Zero

__all__ = ["MOMENTS", "Ema", "Home", "Optimizer", "RunHolding", "Zero", "anywhere", "initial_share"]
