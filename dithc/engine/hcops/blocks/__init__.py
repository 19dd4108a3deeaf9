"""Operators on complete blocks of the network, as one autograd node each.

Contents: `fused` contains the MLP and the block, `program` records the C calls of a block and repeats them.
Invariants: results have the same bits as the separate operators.
Extending: a new fused operator is a function in `fused.py` with its `OpSpec`.
"""

from dithc.engine.hcops.blocks import fused, program

__all__ = ["fused", "program"]
