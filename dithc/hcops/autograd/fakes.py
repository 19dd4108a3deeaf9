"""Shapes and types of what the operators return, for tracers that run no kernel: outputs are contiguous.

Legend: N batch, T tokens, D width, H heads, F output features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)  # (..., F)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return linear(x, weight, bias, dtype), linear(x, weight, bias, dtype)  # (..., F) each


def linear_gate_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, residual: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    wider = torch.promote_types(torch.promote_types(residual.dtype, gate.dtype), dtype)
    return residual.new_empty(residual.shape, dtype=wider), residual.new_empty(residual.shape, dtype=dtype)  # (N, T, F)


def mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    gate: Tensor,
    residual: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden, before = linear_gelu(x, weight1, bias1, dtype)  # (N, T, 4D) each
    out, y = linear_gate_residual(hidden, weight2, bias2, gate, residual, dtype)  # (N, T, F) each
    return out, hidden, before, y


def linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, has_bias: bool, needs: Sequence[bool], *, gelu_at: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    dx = x.new_empty(x.shape) if needs[0] else dy.new_empty(0)  # (..., D)
    dw = x.new_empty(weight.shape, dtype=torch.float32) if needs[1] else dy.new_empty(0)  # (F, D)
    db = x.new_empty(weight.shape[:1], dtype=torch.float32) if has_bias and needs[2] else dy.new_empty(0)  # (F)
    return dx, dw, db


def adaln(x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    statistics = x.new_empty(x.shape[:-1], dtype=torch.float32)  # (N, T)
    return x.new_empty(x.shape, dtype=dtype), statistics, torch.empty_like(statistics)


def adaln_backward(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor, dstream: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), scale.new_empty(scale.shape), scale.new_empty(scale.shape)


def adarms(x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)  # (N, T, D), (N, T)


def adarms_backward(
    dy: Tensor, x: Tensor, scale: Tensor, rstd: Tensor, dstream: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), scale.new_empty(scale.shape), scale.new_empty(scale.shape)


def gate_residual(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    wider = torch.promote_types(torch.promote_types(x.dtype, y.dtype), gate.dtype)
    return x.new_empty(x.shape, dtype=wider)  # (N, T, D)


def gate_residual_backward(dout: Tensor, gate: Tensor, y: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape, dtype=dtype), gate.new_empty(gate.shape)  # (N, T, D), (N, D)


def rotate_heads(qkv: Tensor, num_heads: int, *_: Tensor | float | None) -> Tensor:
    return qkv.new_empty(qkv.shape)  # (N, T, 3D)


def rotate_heads_backward(
    dout: Tensor,
    qkv: Tensor | None,
    num_heads: int,
    cos: Tensor | None,
    sin: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if query_weight is None or key_weight is None:
        return dout.new_empty(dout.shape), dout.new_empty(0), dout.new_empty(0)
    return dout.new_empty(dout.shape), torch.empty_like(query_weight), torch.empty_like(key_weight)


def swiglu(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))  # (N, T, E)


def attention(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    n, t, three = qkv.shape
    return qkv.new_empty((n, t, three // 3)), qkv.new_empty(
        (n, num_heads, t), dtype=torch.float32
    )  # (N, T, D), (N, H, T)


def same(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def like_second(dy: Tensor, saved: Tensor) -> Tensor:
    return saved.new_empty(saved.shape)


def mse(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape[:1], dtype=torch.float32)  # (N)


def scale_add(x: Tensor, y: Tensor | None, alpha: float, beta: float) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if y is None else torch.promote_types(x.dtype, y.dtype))


def patchify(image: Tensor, p: int, order: int) -> Tensor:
    n, c, height, width = image.shape
    return image.new_empty((n, (height // p) * (width // p), c * p * p))  # (N, T, C*p*p)


def unpatchify(patches: Tensor, rows: int, p: int, order: int) -> Tensor:
    n, tokens, features = patches.shape
    return patches.new_empty((n, features // (p * p), rows * p, (tokens // rows) * p))  # (N, C, height, width)
