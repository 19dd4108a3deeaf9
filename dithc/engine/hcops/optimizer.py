"""Operators of an optimizer step: norm, update, orthogonal factor of a matrix, and one buffer for gradients.

Legend: R rows, C columns, S = min(R, C), L = max(R, C).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dithc.engine.hcops import reference, vector
from dithc.engine.hcops.autograd import assign_grad_view, flat_gradients, grad_buffer, storage_use_count, zero_grad
from dithc.engine.hcops.backend import backend_of, log_once, raw
from dithc.engine.hcops.checks import AdamwTensors, argument_error
from dithc.engine.hcops.kernel_registry import FALLBACK
from dithc.engine.hcops.matrix_ops import linear
from dithc.engine.native import AdamwSettings

__all__ = [
    "adamw",
    "assign_grad_view",
    "flat_gradients",
    "gradient_place",
    "orthogonalize",
    "storage_use_count",
    "sum_of_squares",
    "summing",
    "zero_grad",
]

gradient_place, summing = grad_buffer.target, grad_buffer.summing

# Coefficients of Jordan et al. 2024 (Muon). The map x -> a x + b x^3 + c x^5 is steep at 0. It maps (0, 1] to a band
# around 1, 0.68 to 1.21, and keeps values in the band. After 5 iterations, every value that began above 0.0015 is in
# the band.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Iterations on one Gram matrix, whose rounding errors grow with each. Up to 3 iterations are as exact as a new Gram matrix
# in every iteration. With 5, the error is 70 times as large for singular values that decay as i^-1.5.
GRAM_ITERATIONS = 3
MIN_NORM = 1e-7  # smallest divisor, as in Jordan's and torch's versions, so that a zero matrix stays zero


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Return the sum of the squares of all elements in float64; fast back ends add in a fixed order."""
    if _uses_reference("sum_of_squares", tensors):
        return reference.sum_of_squares_forward(tensors)
    return float(raw("sum_of_squares_forward")(tensors))


@torch.no_grad()
def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    *,
    averages: Sequence[Tensor] | None = None,
    shadows: Sequence[Tensor] | None = None,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float = 1.0,
    ema_decay: float = 0.0,
) -> None:
    """Apply an AdamW update to contiguous weights in place (Loshchilov & Hutter 2019, algorithm 2).

    All lists have the shapes of the weights; gradients are not changed. Averages become ema_decay * average + (1 -
    ema_decay) * weight with the new weight, and `shadows` its bf16 copies. `weight_decay` is decoupled. `step` is 1 for
    the first update, and `gradient_scale` multiplies each gradient. UserError: a step below 1, or unequal lists.
    """
    if step < 1:
        raise argument_error("adamw", "step", got=step, expected="1 or more", fix="count updates from 1")
    inputs = [*weights, *gradients, *first, *second, *(averages or ())]
    is_reference = _uses_reference("adamw", inputs)
    kernel = reference.adamw_forward if is_reference else raw("adamw_forward")
    settings = AdamwSettings(lr, *betas, eps, weight_decay, gradient_scale, step, ema_decay)
    kernel(AdamwTensors(weights, gradients, first, second, averages, shadows), settings)
    if not is_reference:  # tell autograd that the memory of saved tensors has changed
        changed = [*weights, *first, *second, *(averages or ()), *(shadows or ())]
        torch.autograd.graph.increment_version(tensor for tensor in changed if not tensor.is_inference())


@torch.no_grad()
def orthogonalize(matrix: Tensor, *, iterations: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return approximately U V^T of the matrix U S V^T (R, C) in `dtype`, which is also the type of its products.

    Each iteration maps X, of largest singular value at most 1, to p(X X^T) X with p(G) = a I + b G + c G^2. If L is at
    least 2 S in fp32, iterations change the Gram matrix and accumulate p: 4 S^2 L + 14 S^3 instead of 10 S^2 L + 5 S^3
    multiply-adds for 5 iterations. The result has transposed memory if R > C.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    norm = max(float(torch.linalg.vector_norm(matrix, dtype=torch.float64)), MIN_NORM)
    x = ((matrix.t() if is_tall else matrix) / norm).to(dtype).contiguous()  # (S, L)
    by_gram = dtype is torch.float32 and x.shape[1] >= 2 * x.shape[0]
    if by_gram:
        for first in range(0, iterations, GRAM_ITERATIONS):
            x = linear(_accumulated(x, min(GRAM_ITERATIONS, iterations - first)), x.t())  # (S, L)
    else:
        for _ in range(iterations):
            x = vector.scale_add(x, linear(_polynomial(linear(x, x)), x.t()), alpha=COEFFICIENTS[0])  # (S, L)
    return x.t() if is_tall else x


def _polynomial(gram: Tensor) -> Tensor:
    """Return b G + c G^2 (S, S). The Gram matrix G is its own transpose."""
    return vector.scale_add(gram, linear(gram, gram), alpha=COEFFICIENTS[1], beta=COEFFICIENTS[2])


def _accumulated(x: Tensor, iterations: int) -> Tensor:
    """Return the product (S, S) of p(G) of all iterations for x (S, L), from its Gram matrix alone.

    All factors are polynomials of one symmetric matrix, thus symmetric, and they commute.
    """
    gram, product = linear(x, x), None  # (S, S)
    for iteration in range(iterations):
        poly = _polynomial(gram)
        poly.diagonal().add_(COEFFICIENTS[0])
        product = poly if product is None else linear(poly, product)
        if iteration + 1 < iterations:
            gram = linear(linear(poly, gram), poly)
    assert product is not None
    return product


def _uses_reference(op: str, tensors: Sequence[Tensor]) -> bool:
    """Return whether plain torch computes the call because of strides, types or devices that fast kernels do not support."""
    if backend_of(op) == FALLBACK:
        return True
    plain = all(tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous() for tensor in tensors)
    if not plain:
        log_once(op, "operator %s: tensors that are not contiguous fp32 on the CPU; the reference serves", op)
    return not plain
