"""The Numba back end: the operators as compiled loops, for machines without the C library.

What: `operators`, `heads` and `vector` hold the raw kernels that the table lists; `loops` and `matrix_loops` are what they run.
Invariants: imported only when it is chosen, as Numba takes a second; the same bits for any number of threads.
How to change it: a loop is a function of `loops.py`, compiled by `compiler.py` and called from a raw kernel.
"""

from dithc.hcops.numba import heads, operators, vector

__all__ = ["heads", "operators", "vector"]
