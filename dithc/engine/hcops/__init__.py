"""Operators of a Diffusion Transformer with gradients, computed by kernels of the selected back end.

Purpose: almost all time of a training step is spent in these operators. Faster kernels need this API only.

Contents: `linear` (with bias, GELU or gated residual as epilogue) and `attention`. `blocks.fused` contains the MLP and the
complete block as one autograd node each, `vector` the memory-bound operators, `optimizer` the norm, the update and the
gradient buffer. `use` selects a back end, and `describe_kernels` lists the kernels in use with reasons. `patch` and `unpatch`
accelerate models of other libraries.

Invariants:

- `spec.SPECS` is the only list of operators. By default the C kernels compute, then Numba without a library, then the
  back end `reference` (plain torch), which also computes inputs that the others do not support. The log reports why.
- Every operator has a gradient for each floating-point input, has no side effects, and supports autocast with fp32
  weights and torch.compile.
- The back end is selected per process. Leave `use` after the backward pass, which uses the same choice.

Extending: a new back end is a package with the raw kernels of `c`, a name in `kernel_registry.FAST` and its modules in
`kernel_registry._modules`. A new operator needs a function in `matrix_ops.py`, `vector.py` or `blocks/fused.py`, a reference, raw
kernels, an `OpSpec`, and an entry in `gradients.FUNCTIONS`.
"""

from dithc.engine.hcops import optimizer, vector
from dithc.engine.hcops.backend import describe_kernels, use
from dithc.engine.hcops.matrix_ops import attention, linear
from dithc.engine.hcops.patching import patch, unpatch

__all__ = ["attention", "describe_kernels", "linear", "optimizer", "patch", "unpatch", "use", "vector"]
