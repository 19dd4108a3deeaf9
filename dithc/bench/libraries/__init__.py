"""Matrix products by other libraries, put under the linear layers of a model: what the paper's tables 3 and 4 compare."""

from dithc.bench.libraries.linear import linear_by, linears_served_by
from dithc.bench.libraries.products import LIBRARIES, Library, described

__all__ = ["LIBRARIES", "Library", "described", "linear_by", "linears_served_by"]
