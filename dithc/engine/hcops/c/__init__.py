"""C back end of the operators.

Contents: `matrix` and `vector` contain the raw kernels. `sequence` runs several kernels in one call. `program` records
kernels that run repeatedly, with `PackedWeights` of constant weights. `library` provides functions and the pool of outputs.
Invariants: every tensor is checked before its pointer is used.
Extending: add a kernel function here and its operator to `dithc.engine.hcops.spec`.
"""

from dithc.engine.hcops.c import library, matrix, vector
from dithc.engine.hcops.c.library import PackedWeights, program, sequence, tensor_version

__all__ = ["PackedWeights", "library", "matrix", "program", "sequence", "tensor_version", "vector"]
