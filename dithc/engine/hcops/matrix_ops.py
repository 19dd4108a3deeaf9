"""Public matrix operators, computed by the active back end.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.engine.hcops import reference
from dithc.engine.hcops.autograd import OPERATORS
from dithc.engine.hcops.checks import check_heads
from dithc.engine.hcops.dispatch import compute_type, dense, rows_dense, uses_reference


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gelu: bool = False,
    gate: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return y = x @ weight^T + bias, or GELU(y) in the tanh form, or residual + gate * y, as one product.

    A weight with an attribute `flat_grad` receives its gradient there (see `optimizer.flat_gradients`).

    Args:
        x: (..., D), with weight (F, D) and bias (F) or None.
        gelu: Apply the GELU (Hendrycks & Gimpel 2016, section 2).
        gate: (N, F), together with `residual`, for x (N, T, D).
        residual: (N, T, F), the stream of the gated branch (Peebles & Xie, section 3.2).

    Returns:
        (..., F) in autocast's type, else the type of the inputs; at least as wide as the residual's type.

    Raises:
        UserError: Shapes or types of the tensors do not match; the message names the argument.
    """
    if gate is not None and residual is not None and not gelu:
        return _linear_gate_residual(x, weight, bias, gate, residual)
    if gate is not None or residual is not None:
        got = f"gelu={gelu}, gate {'given' if gate is not None else 'missing'}"
        fix = "give gate and residual together, and without gelu"
        raise user_error("operator linear, arguments gelu, gate, residual", got=got, expected="one end", fix=fix)
    op = "linear_gelu" if gelu else "linear"
    if uses_reference(op, x=x, weight=weight, bias=bias):
        return reference.linear_gelu(x, weight, bias) if gelu else reference.linear(x, weight, bias)
    return OPERATORS[op](dense(x), dense(weight), bias, compute_type(op, x, weight=weight, bias=bias))


def attention(qkv: Tensor, num_heads: int) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v of each head over all tokens, (N, T, D).

    The last dimension of qkv (N, T, 3D) contains q, k and v, each head by head; `num_heads` divides D.
    """
    is_reference = uses_reference("attention", qkv=qkv)
    check_heads("attention", qkv, num_heads)
    if torch.is_autocast_enabled("cpu") and not is_reference:
        qkv = qkv.to(torch.get_autocast_dtype("cpu"))
    if is_reference:
        return reference.attention(qkv, num_heads)
    return OPERATORS["attention"](dense(qkv), num_heads)


def _linear_gate_residual(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, residual: Tensor) -> Tensor:
    op = "linear_gate_residual"
    if uses_reference(op, x=x, weight=weight, bias=bias, gate=gate, residual=residual):
        return reference.linear_gate_residual(x, weight, bias, gate, residual)
    dtype = compute_type(op, x, weight=weight, bias=bias)
    return OPERATORS["linear_gate_residual"](dense(x), dense(weight), bias, rows_dense(gate), dense(residual), dtype)
