"""Strategies to share a training run between ranks: cftp, dp, dp+tp (DiT only); ZeRO-1 for the optimizer state.

Contents: `Strategy` is the interface; `RankGrid` the pure rank grid; `ShardedState` the shards of the optimizer state.
Invariants: a strategy changes the place of work, and results only by rounding.
Extending: a strategy is a branch of `strategy.py`; `tensor_parallel.py` shards layers, `consistency.py` compares ranks,
`first_pass.py` observes passes.
"""

from dithc.train.strategies.layout import RankGrid
from dithc.train.strategies.strategy import Strategy, make_rank_grid
from dithc.train.strategies.zero import ShardedState

__all__ = ["RankGrid", "ShardedState", "Strategy", "make_rank_grid"]
