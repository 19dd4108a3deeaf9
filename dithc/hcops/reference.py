"""The reference kernels: every operator in plain torch, right on every machine; the truth in the tests.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., D), weight (F, D), bias (F)."""
    return F.linear(x, weight, bias)  # (..., F)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., D), weight (F, D), bias (F)."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")  # (..., F)


def adaln(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x (N, T, D), shift and scale (N, D)."""
    normalised = F.layer_norm(x, (x.shape[-1],), eps=eps)  # (N, T, D)
    return normalised * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # (N, T, D)


def gate_residual(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """x and y (N, T, D), gate (N, D)."""
    return x + gate.unsqueeze(1) * y  # (N, T, D)


def attention(qkv: Tensor, num_heads: int) -> Tensor:
    """qkv (N, T, 3D)."""
    num_images, num_tokens, width = qkv.shape
    heads = qkv.reshape(num_images, num_tokens, 3, num_heads, width // (3 * num_heads))  # (N, T, 3, H, K)
    q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (N, H, T, K) each
    mixed = F.scaled_dot_product_attention(q, k, v)  # (N, H, T, K)
    return mixed.transpose(1, 2).reshape(num_images, num_tokens, width // 3)  # (N, T, D)


def silu(x: Tensor) -> Tensor:
    """x of any shape."""
    return F.silu(x)
