"""Numba back end of the operators, for machines without the C library.

Contents: `operators`, `heads` and `vector` contain the raw kernels, `loops` and `matrix_loops` the compiled functions.
Invariants: imported only if selected, because Numba takes a second. Bits do not depend on the number of threads.
Extending: add a loop to `loops.py`, compile it with `compiler.py`, and call it from a raw kernel.
"""

from dithc.engine.hcops.numba import heads, operators, vector

__all__ = ["heads", "operators", "vector"]
