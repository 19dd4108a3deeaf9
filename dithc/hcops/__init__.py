"""The operators of a Diffusion Transformer, with gradients, each served by a kernel chosen from one table.

What: six operators (`linear`, `linear_gelu`, `adaln`, `gate_residual`, `attention`, `silu`), `use` to choose the back end
that serves them, and `describe` to say which kernel serves what, and why.
Why: all the time of a training step is spent behind this door, so a faster kernel enters here and nowhere else.
Invariants:
- `table.KERNELS` is the only list of kernels; dispatch, tests and benchmarks read it.
- The back end `reference` (plain torch) serves every operator on every machine; it is the truth in the tests and the
  fallback of a back end that lacks an operator, and `describe` says where that happens.
- Every operator has a gradient for each floating-point input and is free of side effects; it works under autocast.
- The choice of back end belongs to the process. A backward pass, and a recomputation inside it, must see the choice its
  forward pass saw: leave `use` after the backward, not before.
How to change it: a new back end is one file (`reference.py` is the model of it) and its lines in `table.py`; a new operator
is a function in `ops.py`, a reference, and a line.
"""

from dithc.hcops.ops import adaln, attention, describe, gate_residual, linear, linear_gelu, silu, use

__all__ = ["adaln", "attention", "describe", "gate_residual", "linear", "linear_gelu", "silu", "use"]
