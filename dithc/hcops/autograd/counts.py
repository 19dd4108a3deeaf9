"""FLOP formulas of the matrix operators for torch.utils.flop_counter. Recomputation in the backward pass counts too.

Legend: N batch, T tokens, D width, F output features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

Shape = Sequence[int]


def register() -> None:
    """Register the formulas with torch. The operators must be defined."""
    ops = torch.ops.dithc
    register_flop_formula([ops.linear, ops.linear_gelu, ops.linear_gate_residual])(_linear)
    register_flop_formula(ops.mlp)(_mlp)
    register_flop_formula(ops.linear_backward)(_linear_backward)
    register_flop_formula(ops.attention)(_attention)
    register_flop_formula(ops.attention_backward)(_attention_backward)


def _linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * torch.Size(x[:-1]).numel() * weight[0] * weight[1]


def _mlp(x: Shape, weight1: Shape, bias1: Shape | None, weight2: Shape, *_: Any, **__: Any) -> int:
    return 2 * torch.Size(x[:-1]).numel() * (weight1[0] * weight1[1] + weight2[0] * weight2[1])


def _linear_backward(dy: Shape, x: Shape, weight: Shape, has_bias: bool, needs: Sequence[bool], **_: Any) -> int:
    return _linear(x, weight) * (needs[0] + needs[1])


def _attention(qkv: Shape, *_: Any, **__: Any) -> int:
    """Count two products of T x T x D."""
    n, t, three = qkv
    return 2 * 2 * n * t * t * (three // 3)


def _attention_backward(dout: Shape, qkv: Shape, *_: Any, **__: Any) -> int:
    """Count five products: recomputed scores, and the gradients of scores, values, queries and keys."""
    return _attention(qkv) * 5 // 2
