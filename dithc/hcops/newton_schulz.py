"""Approximate orthogonal factor of a matrix by products (Newton-Schulz iteration), which use the operators' GEMM.

Legend: R rows, C columns, S = min(R, C), L = max(R, C).
"""

import torch
from torch import Tensor

from dithc.hcops import vector
from dithc.hcops.ops import linear

# Coefficients of Jordan et al. 2024 (Muon). The map x -> a x + b x^3 + c x^5 is steep at 0. It maps (0, 1] to a band
# around 1, 0.68 to 1.21, and keeps values in the band. After 5 iterations, every value that began above 0.0015 is in
# the band.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LEAST_NORM = 1e-7  # smallest divisor, as in Jordan's and torch's versions, so that a zero matrix stays zero


@torch.no_grad()
def orthogonalise(matrix: Tensor, *, iterations: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return approximately U V^T of the matrix U S V^T (R, C) in `dtype`; singular values become about 1, except tiny
    ones.

    Each iteration maps X, of largest singular value at most 1, to (a I + b X X^T + c (X X^T)^2) X. It squares the
    smaller side S and takes 2 S^2 L + S^3 multiply-adds. Products use `dtype`. The result has transposed memory if R >
    C.
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
