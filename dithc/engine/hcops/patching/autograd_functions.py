"""Autograd nodes for operators that a DiT does not call: weighted norms, attention of separate q, k and v, activations.

Their raw kernels come last. Outputs and gradients have the strides of torch's own operators.

Legend: R rows, D width, N batch, H heads, G key heads, T tokens (queries), S keys, K head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.engine import native
from dithc.engine.hcops.backend import log_default, raw
from dithc.engine.hcops.c import library, matrix, vector
from dithc.engine.hcops.checks import TYPES, array, check_shape, fp32
from dithc.engine.hcops.dispatch import dense

Torch = Callable[..., Tensor]
"""The torch function that a node replaces, as a function of its tensors."""


class Attention(NamedTuple):
    """Settings of attention: factor of the scores, and whether query i attends only to keys 0 to i."""

    scale: float
    causal: bool


class dithc_norm(torch.autograd.Function):  # a profiler shows the class name
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019) of x (..., D), contiguous, in x's type.

    Missing weights are ones, missing biases zeros. `torch_call` computes gradients that are not contiguous.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool, torch_call: Torch | None
    ) -> Tensor:
        log_default()
        rows = dense(x).view(-1, x.shape[-1])  # (R, D)
        parameter = weight if weight is not None else bias
        dtype = torch.float32 if parameter is None else parameter.dtype
        weight = torch.ones(x.shape[-1], dtype=dtype, device="cpu") if weight is None else weight
        bias = torch.zeros(x.shape[-1], dtype=dtype, device="cpu") if bias is None else bias
        out, mean, rstd = norm_forward(rows, dense(weight), dense(bias), eps, rms=rms)
        ctx.torch_call = torch_call
        ctx.save_for_backward(rows, weight, mean, rstd)
        # not a view for autograd, so in-place changes are allowed
        result: Tensor = torch.ops.aten._unsafe_view(out, x.shape)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        rows, weight, mean, rstd = ctx.saved_tensors
        x, dbias = rows.view(dy.shape), None
        if ctx.torch_call is not None and dy.stride() != x.stride():
            dx, dweight = _torch_gradients(ctx.torch_call, (x, weight), dy)
        else:
            dx, dweight, dbias = norm_backward(dense(dy).view(rows.shape), rows, dense(weight), mean, rstd)
            dx = dx.view(dy.shape)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        gradients = dx if needs_x else None, dweight if needs_weight else None, dbias if needs_bias else None
        return *gradients, None, None, None


class dithc_attention(torch.autograd.Function):
    """Attention of each head, (N, H, T, K); see `attention_forward`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kind: Attention) -> Tensor:
        log_default()
        out, lse = attention_forward(query, key, value, kind)
        ctx.kind = kind
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        query, key, value, out, lse = ctx.saved_tensors
        return *attention_backward(dout, query, key, value, out, lse, ctx.kind), None


class dithc_activation(torch.autograd.Function):
    """gelu_erf, gelu (tanh form) or silu of a contiguous tensor; `torch_call` serves other gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, torch_call: Torch) -> Tensor:
        log_default()
        ctx.name, ctx.torch_call = name, torch_call
        ctx.save_for_backward(x)
        out: Tensor = vector.gelu_erf_forward(x) if name == "gelu_erf" else raw(f"{name}_forward")(x)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        (x,) = ctx.saved_tensors
        if dy.stride() != x.stride():
            return *_torch_gradients(ctx.torch_call, (x,), dy), None, None
        backward = vector.gelu_erf_backward if ctx.name == "gelu_erf" else raw(f"{ctx.name}_backward")
        return backward(dy, x), None, None


def _torch_gradients(function: Torch, tensors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
    """Return torch's own gradients, because their strides depend on the strides of `dy`."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return torch.autograd.grad(function(*leaves), leaves, dy)


def _first_derivative() -> None:
    if torch.is_grad_enabled():
        got, expected = "a backward pass with create_graph=True", "first derivatives only"
        raise user_error(
            "second derivative in a patched model", got=got, expected=expected, fix="hcops.unpatch the model first"
        )


def norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, rms: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return out (R, D), mean (R) or None, and rstd (R) for x (R, D), weight and bias (D) of one type."""
    rows, width = x.shape
    check_shape("norm", (width,), weight=weight, bias=bias)
    out, rstd = library.pool().empty(x.shape, x.dtype), torch.empty(rows, dtype=torch.float32, device="cpu")
    mean = None if rms else torch.empty_like(rstd)
    weight_address, weight_type = array("norm", "weight", weight)
    library.functions().hc_norm_forward(
        *(native.context(), rows, width, eps, *array("norm", "x", x), array("norm", "bias", bias)[0], weight_address),
        *(weight_type, out.data_ptr(), TYPES[out.dtype], None if mean is None else mean.data_ptr(), rstd.data_ptr()),
    )
    return out, mean, rstd


def norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor | None, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `norm_forward`: dx (R, D) in x's type, and dweight and dbias (D) in weight's type."""
    op, (rows, width) = "norm_backward", x.shape
    check_shape(op, (rows, width), dy=dy)
    check_shape(op, (rows,), rstd=rstd)
    dx, dweight, dbias = library.pool().empty(x.shape, x.dtype), torch.empty_like(weight), torch.empty_like(weight)
    library.functions().hc_norm_backward(
        *(native.context(), rows, width, *array(op, "dy", dy), *array(op, "x", x), *array(op, "weight", weight)),
        *(None if mean is None else fp32(op, "mean", mean), fp32(op, "rstd", rstd), dx.data_ptr(), TYPES[dx.dtype]),
        *(dbias.data_ptr(), dweight.data_ptr(), TYPES[weight.dtype]),
    )
    return dx, dweight, dbias


def attention_forward(query: Tensor, key: Tensor, value: Tensor, kind: Attention) -> tuple[Tensor, Tensor]:
    """Compute attention of query (N, H, T, K) over key and value (N, G, S, K), of last strides 1; G divides H.

    Returns out with the type of query and the strides of `torch.empty_like(query)`, as torch's flash kernel, and the
    logarithms of the sums of exponentials (N, H, T).
    """
    strides = torch.empty_like(query, device="meta").stride()
    buffer = library.pool().empty((query.numel(),), query.dtype)
    out = torch.empty(0, dtype=query.dtype, device="cpu")
    # `set_` makes it own the buffer; a view rejects in-place changes
    out.set_(buffer.untyped_storage(), buffer.storage_offset(), query.shape, strides)
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device="cpu")
    arguments = matrix.attention_arguments(query, key, value, out, lse, *kind)
    library.functions().hc_attention_heads_forward(native.context(), arguments)
    return out, lse


def attention_backward(
    dout: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, kind: Attention
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `attention_forward` in query's type, each in the memory order (N, tokens, heads, K)."""
    n, h, t, k = query.shape
    groups, keys = key.shape[1:3]
    check_shape("attention_backward", out.shape, dout=dout)
    if dout.stride() != out.stride():  # the kernel reads both with the same strides
        dout = torch.empty_like(out).copy_(dout)
    dquery, dkey, dvalue = (
        library.pool().empty((n, rows, h, k), query.dtype).transpose(1, 2) for rows in (t, keys, keys)
    )
    arguments = matrix.attention_arguments(query, key, value, out, lse, *kind)
    for name, tensor in {"dout": dout, "out_dquery": dquery, "out_dkey": dkey, "out_dvalue": dvalue}.items():
        setattr(arguments, name, matrix.head_layout(tensor))
    library.functions().hc_attention_heads_backward(native.context(), arguments)
    if groups == h:
        return dquery, dkey, dvalue
    shared = (n, keys, groups, h // groups, k)
    dkey, dvalue = (d.transpose(1, 2).view(shared).sum(3).transpose(1, 2) for d in (dkey, dvalue))
    return dquery, dkey, dvalue
