"""Flat buffers of gradients and weights, with communication that overlaps computation.

Contents: `Reducer` sums the gradients of all ranks during the backward pass. `ShardedParameters` distributes the weights
over the ranks and gathers them during the next forward pass. `buckets` lays both out.
Invariants: the position of a tensor depends on the sizes alone, and is the same on every rank.
Extending: another partition of the buffer is a function of `buckets.py`.
"""

from dithc.engine.comm.gradients import buckets
from dithc.engine.comm.gradients.reducer import Reducer
from dithc.engine.comm.gradients.sharded_parameters import ShardedParameters

__all__ = ["Reducer", "ShardedParameters", "buckets"]
