"""Nodes of autograd for functions that a DiT does not have: norms with weights, attention of separate q, k and v, GELU by erf.

Legend: R rows, D width, N batch, H heads, G heads of keys, T tokens (queries), S keys, K head width.
"""

from typing import Any

import torch
from torch import Tensor

from dithc.hcops.active import say_default
from dithc.hcops.patching import c_kernels
from dithc.hcops.patching.c_kernels import Attention
from dithc.hcops.route import dense
from dithc.log import problem


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, rms: bool) -> Tensor:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019) over the last dimension.

    Args:
        x: (..., D).
        weight: (D); None for ones.
        bias: (D); None for zeros.
        eps: added to the variance, or to the mean square.
        rms: RMSNorm.

    Returns:
        (..., D) in x's type, as torch gives it.
    """
    out: Tensor = dithc_norm.apply(x, weight, bias, eps, rms)  # type: ignore[no-untyped-call]
    return out


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool) -> Tensor:
    """softmax(scale * q k^T) v for each head; causal: query i sees keys 0 to i.

    Args:
        query: (N, H, T, K), at any strides, as key and value (N, G, S, K), G a divisor of H.
        key: as query.
        value: as query.
        scale: above 0.
        causal: see above.

    Returns:
        (N, H, T, K) in query's type, which lies as (N, T, H, K).
    """
    out: Tensor = dithc_attention.apply(query, key, value, Attention(scale, causal))  # type: ignore[no-untyped-call]
    return out


def gelu_erf(x: Tensor) -> Tensor:
    """x times the probability that a normal number is less (Hendrycks & Gimpel 2016, section 2), any shape."""
    out: Tensor = dithc_gelu_erf.apply(x)  # type: ignore[no-untyped-call]
    return out


class dithc_norm(torch.autograd.Function):  # the names are what a profiler shows
    """The node of `norm`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool) -> Tensor:
        say_default()
        rows = dense(x).view(-1, x.shape[-1])  # (R, D)
        given = weight if weight is not None else bias
        dtype = torch.float32 if given is None else given.dtype
        weight = torch.ones(x.shape[-1], dtype=dtype, device="cpu") if weight is None else weight
        bias = torch.zeros(x.shape[-1], dtype=dtype, device="cpu") if bias is None else bias
        out, mean, rstd = c_kernels.norm_forward(rows, dense(weight), dense(bias), eps, rms=rms)
        ctx.save_for_backward(rows, weight, mean, rstd)
        own: Tensor = torch.ops.aten._unsafe_view(out, x.shape)  # no view to torch: it may be changed in place
        return own

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        rows, weight, mean, rstd = ctx.saved_tensors
        dx, dweight, dbias = c_kernels.norm_backward(dense(dy).view(rows.shape), rows, dense(weight), mean, rstd)
        of_x, of_weight, of_bias, _, _ = ctx.needs_input_grad
        return (
            dx.view(dy.shape) if of_x else None,
            dweight if of_weight else None,
            dbias if of_bias else None,
            None,
            None,
        )


class dithc_attention(torch.autograd.Function):
    """The node of `attention`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kind: Attention) -> Tensor:
        say_default()
        query, key, value = _rows_dense(query), _rows_dense(key), _rows_dense(value)
        out, lse = c_kernels.attention_forward(query, key, value, kind)
        ctx.kind = kind
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        _first_derivative()
        query, key, value, out, lse = ctx.saved_tensors
        gradients = c_kernels.attention_backward(_rows_dense(dout), query, key, value, out, lse, ctx.kind)
        return *gradients, None


class dithc_gelu_erf(torch.autograd.Function):
    """The node of `gelu_erf`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        say_default()
        x = dense(x)
        ctx.save_for_backward(x)
        return c_kernels.gelu_erf_forward(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        _first_derivative()
        return c_kernels.gelu_erf_backward(dense(dy), *ctx.saved_tensors)


def _rows_dense(heads: Tensor) -> Tensor:
    """(N, H, T, K) whose last dimension has no gaps."""
    return heads if heads.stride(-1) == 1 else heads.contiguous()


def _first_derivative() -> None:
    if torch.is_grad_enabled():
        got, expected = "a backward pass with create_graph=True", "first derivatives only"
        raise problem(
            "second derivative in a patched model", got=got, expected=expected, remedy="hcops.unpatch the model first"
        )
