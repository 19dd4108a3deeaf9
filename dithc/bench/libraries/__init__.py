"""Matrix products by other libraries, put under the linear layers of a model: what the paper's tables 3 and 4 compare.

What: `LIBRARIES` says how each is found and called, `EMULATED` how our Arm kernels are where there is no Arm; `linear_by` makes a
linear layer of one, `linears_served_by` puts that under a model.
Why: what a product costs is seen where everything else is equal.
Invariants: a library that cannot multiply here says why; what is named is what is called, for all three products of a layer.
How to change it: another library is a line of `products.LIBRARIES`.
"""

from dithc.bench.libraries.linear import linear_by, linears_served_by
from dithc.bench.libraries.products import EMULATED, LIBRARIES, Library, described

__all__ = ["EMULATED", "LIBRARIES", "Library", "described", "linear_by", "linears_served_by"]
