"""Matrix products of other libraries under the linear layers of a model, for the paper's tables 3 and 4.

`LIBRARIES` defines the discovery and call of each library, `EMULATED` the emulation of the Arm kernels on other CPUs.
`linear_by` builds a linear layer from a library, `linears_served_by` installs it under a model. Only the products
differ between libraries. A library that cannot multiply here returns a reason. To add a library, add a line to
`products.LIBRARIES`.
"""

from dithc.bench.libraries.linear import linear_by, linears_served_by
from dithc.bench.libraries.products import EMULATED, LIBRARIES, Library, described

__all__ = ["EMULATED", "LIBRARIES", "Library", "described", "linear_by", "linears_served_by"]
