"""The matrix operators as callers see them: one contract each, served by the back end that is active.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), E and F output features.
"""

import torch
from torch import Tensor

from dithc.hcops import custom, reference
from dithc.hcops.active import backend_of
from dithc.hcops.checks import heads_of
from dithc.hcops.route import compute_type, dense, reference_serves, rows_dense
from dithc.log import problem

# The operators whose raw kernels `mlp` is made of.
PARTS_OF_MLP = ("mlp", "linear", "linear_gelu", "linear_gate_residual", "gate_residual")


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gelu: bool = False,
    gate: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """y = x @ weight^T + bias; or GELU(y) in the tanh form; or residual + gate * y: one product with its end.

    A weight with an attribute `flat_grad` gets its gradient there (see `optimizer.flat_gradients`).

    Args:
        x: (..., D).
        weight: (F, D).
        bias: (F) or None.
        gelu: applies the GELU (Hendrycks & Gimpel 2016, section 2).
        gate: (N, F), together with `residual`; x is (N, T, D) then.
        residual: (N, T, F), the stream that the gated branch is added to (Peebles & Xie, section 3.2).

    Returns:
        (..., F), in autocast's type where autocast is on, else in the type of the inputs; with a residual in the wider of
        that type and the residual's: an fp32 stream stays fp32.

    Raises:
        UserError: tensors that do not go together; the message names the argument.
    """
    if gate is not None and residual is not None and not gelu:
        return _linear_gate_residual(x, weight, bias, gate, residual)
    if gate is not None or residual is not None:
        got = f"gelu={gelu}, gate {'given' if gate is not None else 'missing'}"
        remedy = "give gate and residual together, and without gelu"
        raise problem("operator linear, arguments gelu, gate, residual", got=got, expected="one end", remedy=remedy)
    op = "linear_gelu" if gelu else "linear"
    if reference_serves(op, x=x, weight=weight, bias=bias):
        return reference.linear_gelu(x, weight, bias) if gelu else reference.linear(x, weight, bias)
    operator = custom.LINEAR_GELU if gelu else custom.LINEAR
    return operator(dense(x), dense(weight), bias, compute_type(op, x, weight=weight, bias=bias))


def mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    *,
    gate: Tensor,
    residual: Tensor,
) -> Tensor:
    """residual + gate * (GELU(x @ weight1^T + bias1) @ weight2^T + bias2): two calls of `linear` as one node of autograd.

    So the gradient of the GELU is multiplied into the product that makes the gradient of the hidden layer: the two passes
    over memory that it takes apart are spared.

    Args:
        x: (N, T, D).
        weight1: (E, D); weights with an attribute `flat_grad` get their gradients there, as in `linear`.
        bias1: (E) or None.
        weight2: (F, E).
        bias2: (F) or None.
        gate: (N, F).
        residual: (N, T, F).

    Returns:
        (N, T, F), as the second `linear` does. Where different back ends serve the parts, these are called one by one.

    Raises:
        UserError: tensors that do not go together; the message names the argument.
    """
    layers = {"weight1": weight1, "bias1": bias1, "weight2": weight2, "bias2": bias2}
    if reference_serves("mlp", x=x, **layers, gate=gate, residual=residual):
        return reference.mlp(x, weight1, bias1, weight2, bias2, gate, residual)
    if len({backend_of(part) for part in PARTS_OF_MLP}) > 1:
        return linear(linear(x, weight1, bias1, gelu=True), weight2, bias2, gate=gate, residual=residual)
    dtype = compute_type("mlp", x, **layers)
    return custom.MLP(
        *(dense(x), dense(weight1), bias1, dense(weight2), bias2, rows_dense(gate), dense(residual)), dtype
    )


def attention(qkv: Tensor, num_heads: int) -> Tensor:
    """softmax(q k^T / sqrt(K)) v for each head, over all tokens.

    Args:
        qkv: (N, T, 3D); the last dimension holds q, then k, then v, each of them head by head.
        num_heads: H; divides D.

    Returns:
        (N, T, D), head by head.
    """
    served = reference_serves("attention", qkv=qkv)
    heads_of("attention", qkv, num_heads)
    if served:
        return reference.attention(qkv, num_heads)
    if torch.is_autocast_enabled("cpu"):
        qkv = qkv.to(torch.get_autocast_dtype("cpu"))
    return custom.ATTENTION(dense(qkv), num_heads)


def _linear_gate_residual(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, residual: Tensor) -> Tensor:
    op = "linear_gate_residual"
    if reference_serves(op, x=x, weight=weight, bias=bias, gate=gate, residual=residual):
        return reference.linear_gate_residual(x, weight, bias, gate, residual)
    dtype = compute_type(op, x, weight=weight, bias=bias)
    return custom.LINEAR_GATE_RESIDUAL(dense(x), dense(weight), bias, rows_dense(gate), dense(residual), dtype)
