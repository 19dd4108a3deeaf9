"""Gradients and weights in flat buffers: sums that overlap with the backward pass, shares that travel during the next forward.

What: `Reducer` sums the gradients of all ranks, `SharedWeights` keeps of each weight one rank's share; `buckets` lays both out.
Invariants: where a tensor lies follows from the sizes alone, the same on every rank.
How to change it: another cut of the buffer is a function of `buckets.py`.
"""

from dithc.comm.gradients import buckets
from dithc.comm.gradients.reducer import Reducer
from dithc.comm.gradients.sharding import SharedWeights

__all__ = ["Reducer", "SharedWeights", "buckets"]
