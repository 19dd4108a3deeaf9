"""Matrix products of other libraries under the linear layers of a model, for the paper's tables 3 and 4.

Only the products differ between libraries. A library that cannot multiply here returns a reason. To add a library, add
a line to `libraries.LIBRARIES`.
"""

from dithc.bench.gemm_libraries.libraries import LIBRARIES, GemmLibrary, describe_libraries
from dithc.bench.gemm_libraries.linear import make_linear, use_linear

__all__ = ["LIBRARIES", "GemmLibrary", "describe_libraries", "make_linear", "use_linear"]
