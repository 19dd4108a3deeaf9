"""Specification of every operator: kernels, schema for torch.library and result shapes.

Legend: N batch, T tokens, D width, H heads, K head width, E width of a hidden layer, F output features, C channels,
p side of a patch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

Fake = Callable[..., Any]
"""Function of an operator's arguments that returns empty results, for tracers that run no kernel."""


@dataclass(frozen=True)
class OpSpec:
    """Specification of an operator.

    Attributes:
        name: Name in `torch.ops.dithc`. The raw kernels are `<name>_forward` and `<name>_backward`.
        parts: Names of the C kernels in kernels/kernel_table.h, with * for any end. Empty without vector code.
        schema: Arguments and results of the forward pass in torch's notation; empty for operators without a gradient.
            Only the first result has a gradient.
        fake: Results of the forward pass.
        backward: Schema of the backward kernel. Empty if other operators compute the gradient.
        may_drop: Whether the forward kernel accepts keep=False, which skips results that only the gradient needs.
    """

    name: str
    parts: tuple[str, ...] = ()
    schema: str = ""
    fake: Fake = lambda x: x.new_empty(x.shape)
    backward: str = ""
    backward_fake: Fake = lambda dy, saved, *_: saved.new_empty(saved.shape)
    may_drop: bool = False


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)  # (..., F)


def _gated(residual: Tensor, gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    wider = torch.promote_types(torch.promote_types(residual.dtype, gate.dtype), dtype)
    return residual.new_empty(residual.shape, dtype=wider), residual.new_empty(residual.shape, dtype=dtype)  # (N, T, F)


def _mlp(x: Tensor, weight1: Tensor, gate: Tensor, residual: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    out, y = _gated(residual, gate, dtype)
    hidden, before = (_linear(x, weight1, None, dtype) for _ in range(2))
    return out, hidden, before, y  # (N, T, F), (N, T, E), (N, T, E), (N, T, F)


def _linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, has_bias: bool, needs: list[bool], *, gelu_at: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    dx = x.new_empty(x.shape) if needs[0] else dy.new_empty(0)  # (..., D)
    dw = x.new_empty(weight.shape, dtype=torch.float32) if needs[1] else dy.new_empty(0)  # (F, D)
    db = x.new_empty(weight.shape[:1], dtype=torch.float32) if has_bias and needs[2] else dy.new_empty(0)  # (F)
    return dx, dw, db


def _norm(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype, *, statistics: int
) -> tuple[Tensor, ...]:
    rows = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(statistics))  # (N, T) each
    return x.new_empty(x.shape, dtype=dtype), *rows


def _norm_backward(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), scale.new_empty(scale.shape), scale.new_empty(scale.shape)  # (N, T, D), (N, D) twice


def _attention(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    n, t, width = qkv.shape
    return qkv.new_empty((n, t, width // 3)), qkv.new_empty((n, num_heads, t), dtype=torch.float32)


def _rotate_heads_backward(
    dout: Tensor, query_weight: Tensor | None, key_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dquery, dkey = (dout.new_empty(0) if w is None else torch.empty_like(w) for w in (query_weight, key_weight))
    return dout.new_empty(dout.shape), dquery, dkey  # (N, T, 3D), (K), (K)


def _patches(image: Tensor, p: int, order: int) -> Tensor:
    n, c, height, width = image.shape
    return image.new_empty((n, (height // p) * (width // p), c * p * p))  # (N, T, C * p * p)


def _image(patches: Tensor, rows: int, p: int, order: int) -> Tensor:
    n, tokens, features = patches.shape
    return patches.new_empty((n, features // (p * p), rows * p, (tokens // rows) * p))  # (N, C, height, width)


_PRODUCTS = ("gemm_f32", "gemm_f32_split", "gemm_bf16", "epilogue", "few_*")
_MAP = ("map*",)
_UNARY = "(Tensor x) -> Tensor"
_PAIR = "(Tensor dy, Tensor saved) -> Tensor"

SPECS = (
    OpSpec(
        "linear",
        parts=_PRODUCTS,
        schema="(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> Tensor",
        fake=_linear,
        backward="(Tensor dy, Tensor x, Tensor weight, bool has_bias, bool[3] needs, *, Tensor? gelu_at=None) "
        "-> (Tensor, Tensor, Tensor)",
        backward_fake=_linear_backward,
    ),
    OpSpec(
        "linear_gelu",
        parts=_PRODUCTS,
        schema="(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> (Tensor, Tensor)",
        fake=lambda *inputs: (_linear(*inputs), _linear(*inputs)),
        may_drop=True,
    ),
    OpSpec(
        "linear_gate_residual",
        parts=_PRODUCTS,
        schema="(Tensor x, Tensor weight, Tensor? bias, Tensor gate, Tensor residual, ScalarType dtype) "
        "-> (Tensor, Tensor)",
        fake=lambda x, weight, bias, gate, residual, dtype: _gated(residual, gate, dtype),
        may_drop=True,
    ),
    OpSpec(
        "mlp",
        parts=_PRODUCTS,
        schema="(Tensor x, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, Tensor gate, Tensor residual, "
        "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
        fake=lambda x, weight1, bias1, weight2, bias2, gate, residual, dtype: _mlp(x, weight1, gate, residual, dtype),
        may_drop=True,
    ),
    OpSpec(
        "adaln",
        parts=("adaln*", "add_blocks"),
        schema="(Tensor x, Tensor shift, Tensor scale, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
        fake=partial(_norm, statistics=2),
        backward="(Tensor dy, Tensor x, Tensor scale, Tensor mean, Tensor rstd, Tensor? dstream=None) "
        "-> (Tensor, Tensor, Tensor)",
        backward_fake=lambda dy, x, scale, mean, rstd, dstream=None: _norm_backward(x, scale),
    ),
    OpSpec(
        "adarms",
        parts=("adaln*", "add_blocks"),
        schema="(Tensor x, Tensor shift, Tensor scale, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        fake=partial(_norm, statistics=1),
        backward="(Tensor dy, Tensor x, Tensor scale, Tensor rstd, Tensor? dstream=None) -> (Tensor, Tensor, Tensor)",
        backward_fake=lambda dy, x, scale, rstd, dstream=None: _norm_backward(x, scale),
    ),
    OpSpec(
        "gate_residual",
        parts=("gate_residual*", "add_blocks"),
        schema="(Tensor x, Tensor gate, Tensor y) -> Tensor",
        fake=lambda x, gate, y: _gated(x, gate, y.dtype)[0],
        backward="(Tensor dout, Tensor gate, Tensor y, *, ScalarType dtype) -> (Tensor, Tensor)",
        backward_fake=lambda dout, gate, y, *, dtype: (y.new_empty(y.shape, dtype=dtype), gate.new_empty(gate.shape)),
    ),
    OpSpec(
        "attention",
        parts=("attention*", *_PRODUCTS[:2]),
        schema="(Tensor qkv, SymInt num_heads) -> (Tensor, Tensor)",
        fake=_attention,
        backward="(Tensor dout, Tensor qkv, Tensor out, Tensor lse, SymInt num_heads) -> Tensor",
    ),
    OpSpec(
        "rotate_heads",
        parts=("rotate_heads*", "add_blocks"),
        schema="(Tensor qkv, SymInt num_heads, float eps, Tensor? cos, Tensor? sin, Tensor? query_weight, "
        "Tensor? key_weight) -> Tensor",
        fake=lambda qkv, num_heads, eps, *constants: qkv.new_empty(qkv.shape),
        backward="(Tensor dout, Tensor? qkv, SymInt num_heads, float eps, Tensor? cos, Tensor? sin, Tensor? query_weight, "
        "Tensor? key_weight) -> (Tensor, Tensor, Tensor)",
        backward_fake=lambda dout, qkv, num_heads, eps, cos, sin, *weights: _rotate_heads_backward(dout, *weights),
    ),
    OpSpec(
        "swiglu",
        parts=("swiglu*",),
        schema=_UNARY,
        fake=lambda x: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),  # (N, T, E)
        backward=_PAIR,
    ),
    OpSpec("silu", parts=_MAP, schema=_UNARY, backward=_PAIR),
    OpSpec("gelu", parts=_MAP, schema=_UNARY, backward=_PAIR),
    OpSpec("softmax", parts=("softmax*",), schema=_UNARY, backward=_PAIR),
    OpSpec(
        "mse",
        parts=("squared_difference", "scaled_difference", "add_blocks"),
        schema="(Tensor x, Tensor y) -> Tensor",
        fake=lambda x, y: x.new_empty(x.shape[:1], dtype=torch.float32),  # (N)
        backward="(Tensor dout, Tensor x, Tensor y) -> Tensor",
    ),
    OpSpec("patchify", schema="(Tensor image, SymInt p, int order) -> Tensor", fake=_patches),
    OpSpec("unpatchify", schema="(Tensor patches, SymInt rows, SymInt p, int order) -> Tensor", fake=_image),
    OpSpec("exp", parts=_MAP, schema=_UNARY, backward=_PAIR),
    OpSpec("tanh", parts=_MAP, schema=_UNARY, backward=_PAIR),
    OpSpec(
        "scale_add",
        parts=("scale_add*",),
        schema="(Tensor x, Tensor? y, float alpha, float beta) -> Tensor",
        fake=lambda x, y, alpha, beta: x.new_empty(
            x.shape, dtype=x.dtype if y is None else torch.promote_types(x.dtype, y.dtype)
        ),
    ),
    OpSpec("sum_of_squares", parts=("sum_of_squares*",)),
    OpSpec("adamw", parts=("adamw*",)),
)
