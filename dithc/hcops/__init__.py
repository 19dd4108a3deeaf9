"""The operators of a Diffusion Transformer, with gradients, each served by a kernel chosen from one table.

What: `linear` (with bias, and a GELU or a gated residual as its end), `attention`; in `fused` the MLP and the whole block as one
node of autograd each; in `vector` the operators bound by memory; in `optimizer` norm, update and the buffer of gradients; `use`
to choose the back end that serves them, `describe` to say which kernel serves what, and why; `patch` and `unpatch` for the
models of others.
Why: all the time of a training step is spent behind this door, so a faster kernel enters here and nowhere else.
Invariants:
- `table.KERNELS` is the only list of kernels; dispatch, tests and benchmarks read it. Without a choice the C kernels serve, or
  Numba's where there is no library, or the reference; a line of the log says which, and why.
- The back end `reference` (plain torch) serves every operator on every machine; it is the truth in the tests, and what serves
  inputs that the others do not take. That is never silent: `describe` states the rule, the log each case.
- Every operator has a gradient for each floating-point input and is free of side effects; it works under autocast, with
  weights that stay fp32, and in torch.compile.
- The choice of back end belongs to the process. A backward pass, and a recomputation inside it, must see the choice its
  forward pass saw: leave `use` after the backward, not before.
How to change it: a new back end is a room with the raw kernels of `c`, its lines in `table.py` and its entry in
`raw_of`; a new operator is a function in `ops.py`, `vector.py` or `fused.py`, a reference, raw kernels, an entry of `custom.py`
with its gradient, and a line for each back end.
"""

from dithc.hcops import optimizer, vector
from dithc.hcops.active import describe, use
from dithc.hcops.ops import attention, linear
from dithc.hcops.patching import patch, unpatch

__all__ = ["attention", "describe", "linear", "optimizer", "patch", "unpatch", "use", "vector"]
