"""Strategies to share a training run between ranks: cftp, dp, dp+tp (DiT only); ZeRO-1 for the optimizer state.

Contents: `Strategy` is the interface; `Layout` the pure rank grid; `Zero` the shards of the optimizer state.
Invariants: a strategy changes the place of work, and results only by rounding.
Extending: a strategy is a branch of `strategy.py`; `tensor_parallel.py` shards layers, `consistency.py` compares ranks,
`first_pass.py` observes passes.
"""

from dithc.train.strategies.layout import Layout
from dithc.train.strategies.strategy import Strategy, layout_on
from dithc.train.strategies.zero import Zero

__all__ = ["Layout", "Strategy", "Zero", "layout_on"]
