"""The C back end: tensors in, tensors out, by way of the kernels' library.

What: `matrix` and `vector` hold the raw kernels that the table lists; `sequence` runs several of them in one call, `program` as
often as wanted, with `Packs` of the weights where these do not change; `library` is what both need: the functions, at once or in
sequence, and the pool of outputs.
Invariants: every tensor is checked before its pointer is used.
How to change it: a kernel is a function here, and a line of `dithc.hcops.table`.
"""

from dithc.hcops.c import library, matrix, vector
from dithc.hcops.c.library import program, sequence
from dithc.hcops.c.packs import Packs, version_of

__all__ = ["Packs", "library", "matrix", "program", "sequence", "vector", "version_of"]
