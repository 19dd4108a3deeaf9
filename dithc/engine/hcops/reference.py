"""Reference kernels: every operator in plain torch, valid on every machine and the reference of the tests.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features, C channels, R and S rows and
columns of patches (T = R * S), p side of a patch.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dithc.engine.hcops.checks import AdamwTensors
from dithc.engine.native import AdamwSettings


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)  # (..., F)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")  # (..., F)


def linear_gate_residual(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, residual: Tensor) -> Tensor:
    return gate_residual(residual, gate, F.linear(x, weight, bias))  # (N, T, F)


def adaln(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    normalized = F.layer_norm(x, (x.shape[-1],), eps=eps)  # (N, T, D)
    return normalized * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # (N, T, D)


def adarms(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    normalized = F.rms_norm(x, (x.shape[-1],), eps=eps)  # (N, T, D)
    return normalized * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # (N, T, D)


def gate_residual(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    return x + gate.unsqueeze(1) * y  # (N, T, D)


def attention(qkv: Tensor, num_heads: int) -> Tensor:
    num_images, num_tokens, width = qkv.shape
    heads = qkv.reshape(num_images, num_tokens, 3, num_heads, width // (3 * num_heads))  # (N, T, 3, H, K)
    q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (N, H, T, K) each
    mixed = F.scaled_dot_product_attention(q, k, v)  # (N, H, T, K)
    return mixed.transpose(1, 2).reshape(num_images, num_tokens, width // 3)  # (N, T, D)


def rotate_heads(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor | None,
    sin: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
) -> Tensor:
    """Apply norm weights (K) and tables (T, K / 2) to qkv (N, T, 3D), in fp32 or wider, rounded once."""
    wide = qkv.to(torch.promote_types(qkv.dtype, torch.float32))
    num_images, num_tokens, width = qkv.shape
    heads = wide.reshape(num_images, num_tokens, 3, num_heads, width // (3 * num_heads))  # (N, T, 3, H, K)
    query, key, value = heads.unbind(2)  # (N, T, H, K) each
    if query_weight is not None and key_weight is not None:
        query = F.rms_norm(query, query.shape[-1:], eps=eps) * query_weight  # (N, T, H, K)
        key = F.rms_norm(key, key.shape[-1:], eps=eps) * key_weight  # (N, T, H, K)
    if cos is not None and sin is not None:
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    return torch.stack((query, key, value), dim=2).reshape(qkv.shape).to(qkv.dtype)  # (N, T, 3D)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = heads[..., 0::2], heads[..., 1::2]  # (N, T, H, K / 2) each
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)  # (T, 1, K / 2) each
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=4).flatten(3)  # (N, T, H, K)


silu, exp, tanh = F.silu, torch.exp, torch.tanh
gelu = partial(F.gelu, approximate="tanh")
softmax = partial(torch.softmax, dim=-1)


def swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)  # (N, T, E) each
    return F.silu(gate) * value  # (N, T, E)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared difference of x and y (N, ...) per sample."""
    return ((x.float() - y.float()) if x.dtype != torch.float64 else x - y).square().flatten(1).mean(1)  # (N)


def patchify(image: Tensor, p: int, order: int) -> Tensor:
    """Cut image (N, C, R * p, S * p) into patches, with elements (C, p, p) for order 0 or (p, p, C) for order 1."""
    n, c, height, width = image.shape
    cut = image.reshape(n, c, height // p, p, width // p, p)  # (N, C, R, p, S, p)
    cut = cut.permute((0, 2, 4, 1, 3, 5) if order == 0 else (0, 2, 4, 3, 5, 1))
    return cut.reshape(n, (height // p) * (width // p), c * p * p)  # (N, T, C*p*p)


def unpatchify(patches: Tensor, rows: int, p: int, order: int) -> Tensor:
    """Join patches (N, T, C * p * p) with R = `rows`."""
    n, tokens, features = patches.shape
    c, columns = features // (p * p), tokens // rows
    patch_shape = (c, p, p) if order == 0 else (p, p, c)
    cut = patches.reshape(n, rows, columns, *patch_shape)  # (N, R, S, C, p, p) or (N, R, S, p, p, C)
    cut = cut.permute((0, 3, 1, 4, 2, 5) if order == 0 else (0, 5, 1, 3, 2, 4))  # (N, C, R, p, S, p)
    return cut.reshape(n, c, rows * p, columns * p)  # (N, C, height, width)


def scale_add(x: Tensor, y: Tensor | None, alpha: float, beta: float) -> Tensor:
    return alpha * x if y is None else alpha * x + beta * y


@torch.no_grad()
def sum_of_squares_forward(tensors: Sequence[Tensor]) -> float:
    """Return the sum over all tensors; the norm of each tensor is computed in its type."""
    if not tensors:
        return 0.0
    return float(torch.stack([norm.double() for norm in torch._foreach_norm(list(tensors))]).square().sum())


@torch.no_grad()
def adamw_forward(tensors: AdamwTensors, settings: AdamwSettings) -> None:
    weights, gradients, first, second = (list(group) for group in tensors[:4])
    if not weights:
        return
    if settings.gradient_scale != 1:
        gradients = list(torch._foreach_mul(gradients, settings.gradient_scale))
    torch._fused_adamw_(
        *(weights, gradients, first, second, [], [torch.tensor(float(settings.step)) for _ in weights]),
        **{name: getattr(settings, name) for name in ("lr", "beta1", "beta2", "weight_decay", "eps")},
        amsgrad=False,
        maximize=False,
    )
    if tensors.averages is not None:
        torch._foreach_lerp_(list(tensors.averages), weights, 1.0 - settings.ema_decay)
    if tensors.shadows is not None:
        torch._foreach_copy_(list(tensors.shadows), weights)
