"""Autograd nodes for operators that a DiT does not call: weighted norms, attention of separate q, k and v, activations.

Outputs and gradients have the strides of torch's own operators. Legend: R rows, D width, N batch, H heads, G key heads,
T tokens (queries), S keys, K head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dithc.hcops.active import raw, say_default
from dithc.hcops.c import vector
from dithc.hcops.patching import c_kernels
from dithc.hcops.patching.c_kernels import Attention
from dithc.hcops.route import dense
from dithc.log import problem

Torch = Callable[..., Tensor]
"""The torch function that a node replaces, as a function of its tensors."""


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, rms: bool, torch_call: Torch | None = None
) -> Tensor:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019) of x (..., D), contiguous, in x's type.

    Missing weight (D) means ones, missing bias zeros. `torch_call` computes gradients that are not contiguous; without
    it, any gradient is accepted.
    """
    out: Tensor = dithc_norm.apply(x, weight, bias, eps, rms, torch_call)  # type: ignore[no-untyped-call]
    return out


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool) -> Tensor:
    """Return softmax(scale * q k^T) v of each head, (N, H, T, K) with strides of `torch.empty_like(query)`.

    key and value are (N, G, S, K), and G divides H. All inputs have stride 1 in the last dimension. `causal` limits
    query i to keys 0 to i.
    """
    out: Tensor = dithc_attention.apply(query, key, value, Attention(scale, causal))  # type: ignore[no-untyped-call]
    return out


def activation(x: Tensor, name: str, torch_call: Torch) -> Tensor:
    """Return gelu_erf, gelu (tanh form) or silu of a contiguous tensor; `torch_call` serves gradients that are not
    contiguous.
    """
    out: Tensor = dithc_activation.apply(x, name, torch_call)  # type: ignore[no-untyped-call]
    return out


class dithc_norm(torch.autograd.Function):  # a profiler shows the class name
    """Node of `norm`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool, torch_call: Torch | None
    ) -> Tensor:
        say_default()
        rows = dense(x).view(-1, x.shape[-1])  # (R, D)
        given = weight if weight is not None else bias
        dtype = torch.float32 if given is None else given.dtype
        weight = torch.ones(x.shape[-1], dtype=dtype, device="cpu") if weight is None else weight
        bias = torch.zeros(x.shape[-1], dtype=dtype, device="cpu") if bias is None else bias
        out, mean, rstd = c_kernels.norm_forward(rows, dense(weight), dense(bias), eps, rms=rms)
        ctx.torch_call = torch_call
        ctx.save_for_backward(rows, weight, mean, rstd)
        own: Tensor = torch.ops.aten._unsafe_view(
            out, x.shape
        )  # not a view for autograd, so in-place changes are allowed
        return own

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        rows, weight, mean, rstd = ctx.saved_tensors
        x, dbias = rows.view(dy.shape), None
        if ctx.torch_call is not None and dy.stride() != x.stride():
            dx, dweight = _by_torch(ctx.torch_call, (x, weight), dy)
        else:
            dx, dweight, dbias = c_kernels.norm_backward(dense(dy).view(rows.shape), rows, dense(weight), mean, rstd)
            dx = dx.view(dy.shape)
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        found = dx if of_x else None, dweight if of_weight else None, dbias if of_bias else None
        return *found, None, None, None


class dithc_attention(torch.autograd.Function):
    """Node of `attention`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kind: Attention) -> Tensor:
        say_default()
        out, lse = c_kernels.attention_forward(query, key, value, kind)
        ctx.kind = kind
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        query, key, value, out, lse = ctx.saved_tensors
        return *c_kernels.attention_backward(dout, query, key, value, out, lse, ctx.kind), None


class dithc_activation(torch.autograd.Function):
    """Node of `activation`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, torch_call: Torch) -> Tensor:
        say_default()
        ctx.name, ctx.torch_call = name, torch_call
        ctx.save_for_backward(x)
        out: Tensor = vector.gelu_erf_forward(x) if name == "gelu_erf" else raw(f"{name}_forward")(x)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        (x,) = ctx.saved_tensors
        if dy.stride() != x.stride():
            return *_by_torch(ctx.torch_call, (x,), dy), None, None
        backward = vector.gelu_erf_backward if ctx.name == "gelu_erf" else raw(f"{ctx.name}_backward")
        return backward(dy, x), None, None


def _by_torch(function: Torch, tensors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
    """Return torch's own gradients, because their strides depend on the strides of `dy`."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return torch.autograd.grad(function(*leaves), leaves, dy)


def _first_derivative() -> None:
    if torch.is_grad_enabled():
        got, expected = "a backward pass with create_graph=True", "first derivatives only"
        raise problem(
            "second derivative in a patched model", got=got, expected=expected, fix="hcops.unpatch the model first"
        )
