"""Operators on complete blocks of the network, as one autograd node each.

Contents: `fused` contains the MLP and the block, `program` records the C calls of a block and repeats them,
`sharded_ops` computes attention and linear layers for a share of the tokens of an image.
Invariants: results have the same bits as the separate operators.
Extending: a new fused operator is a function in `fused.py` with its `OpSpec`.
"""

from dithc.engine.hcops.blocks import fused, program, sharded_ops

__all__ = ["fused", "program", "sharded_ops"]
