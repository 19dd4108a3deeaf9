"""The update of the weights: AdamW, or Muon beside it, over all or a share of them, and the averages that follow them.

What: `Optimizer` clips and updates what its strategy says is this rank's, `Ema` follows.
Invariants: master weights, moments and average are fp32; a share changes who updates, never what.
How to change it: another optimizer is a file like `muon.py`, called from `optimizer.py`.
"""

from dithc.train.optimizer.ema import Ema, initial_share
from dithc.train.optimizer.optimizer import Optimizer

__all__ = ["Ema", "Optimizer", "initial_share"]
