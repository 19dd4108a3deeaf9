"""The orthogonal factor of a matrix by products alone (Newton-Schulz), which run on the operators' own GEMM.

Legend: R rows, C columns, S = min(R, C), L = max(R, C).
"""

import torch
from torch import Tensor

from dithc.hcops import vector
from dithc.hcops.ops import linear

# Of Jordan et al. 2024 (Muon): x -> a x + b x^3 + c x^5 is steep at 0 and takes (0, 1] not to 1, but into a band about it, 0.68
# to 1.21, where it keeps what has come there: after 5 iterations, all that began above 0.0015.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LEAST_NORM = 1e-7  # by which a matrix is divided, as in Jordan's and torch's: that of zeros stays 0


@torch.no_grad()
def orthogonalise(matrix: Tensor, *, iterations: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about U V^T of the matrix U S V^T (R, C) in `dtype`: every singular value that is not tiny becomes about 1.

    Each iteration maps X, of largest singular value at most 1, to (a I + b X X^T + c (X X^T)^2) X. It squares the smaller side S
    and takes 2 S^2 L + S^3 multiply-adds. Products use `dtype`; the result has transposed memory where R > C.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    norm = max(float(torch.linalg.vector_norm(matrix, dtype=torch.float64)), LEAST_NORM)
    x = ((matrix.t() if is_tall else matrix) / norm).to(dtype).contiguous()  # (S, L)
    for _ in range(iterations):
        gram = linear(x, x)  # (S, S), X X^T
        poly = vector.scale_add(
            gram, linear(gram, gram), alpha=b, beta=c
        )  # (S, S); the Gram matrix is its own transpose
        x = vector.scale_add(x, linear(poly, x.t()), alpha=a)  # (S, L)
    return x.t() if is_tall else x
