"""Several operators as one autograd node: the MLP of a block, and the complete block of a DiT.

Between two kernels, Python, autograd and modules take 0.2 to 0.3 milliseconds, because a product evicts their data from
the caches. A block therefore runs its C kernels as one call forward and two calls backward.

Legend: N batch, T tokens, D width, E width of the hidden layer, F output features, H heads, K head width (D = H * K).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from dithc.engine.hcops import reference
from dithc.engine.hcops.autograd import OPERATORS, gradients, restore_grad, traced
from dithc.engine.hcops.backend import backend_of, log_default, raw
from dithc.engine.hcops.c import sequence
from dithc.engine.hcops.dispatch import compute_type, dense, rows_dense, unsupported_reason, uses_reference
from dithc.engine.hcops.matrix_ops import linear

# Operators that provide the raw kernels of each node.
PARTS_OF_MLP = ("mlp", "linear", "linear_gelu", "linear_gate_residual", "gate_residual")
PARTS_OF_BLOCK = (*PARTS_OF_MLP, "silu", "adaln", "attention", "adarms", "rotate_heads", "swiglu")

# Indices of the linear layers of a block, in the order of `BlockWeights`.
MODULATION, QKV, PROJECTION, HIDDEN, OUT = range(5)
NUM_LAYERS = 5
ALL = (True, True, True)  # gradients of x, weight and bias
NUM_CONDITIONS = 6  # shift, scale and gate of the attention, then of the MLP
FIRST_WEIGHT = 2  # index of the first weight among the inputs of the node


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
    """Return residual + gate * (GELU(x @ weight1^T + bias1) @ weight2^T + bias2) as one autograd node.

    The product for the gradient of the hidden layer includes the gradient of the GELU, which saves two passes over
    memory. Weights with an attribute `flat_grad` receive their gradients there. Operators run one by one if their back
    ends differ. x is (N, T, D), weight1 (E, D), weight2 (F, E), gate (N, F), residual and result (N, T, F). UserError
    names the argument with a wrong shape or type.
    """
    layers = {"weight1": weight1, "bias1": bias1, "weight2": weight2, "bias2": bias2}
    if uses_reference("mlp", x=x, **layers, gate=gate, residual=residual):
        hidden = reference.linear_gelu(x, weight1, bias1)
        return reference.linear_gate_residual(hidden, weight2, bias2, gate, residual)
    if len({backend_of(part) for part in PARTS_OF_MLP}) > 1:
        return linear(linear(x, weight1, bias1, gelu=True), weight2, bias2, gate=gate, residual=residual)
    dtype = compute_type("mlp", x, **layers)
    return OPERATORS["mlp"](
        *(dense(x), dense(weight1), bias1, dense(weight2), bias2, rows_dense(gate), dense(residual)), dtype
    )


class BlockWeights(NamedTuple):
    """Parameters of a block: each weight (out, in) before its bias (out), then the optional norms of q and k."""

    modulation: Tensor  # (6D, D)
    modulation_bias: Tensor
    qkv: Tensor  # (3D, D)
    qkv_bias: Tensor
    projection: Tensor  # (D, D)
    projection_bias: Tensor
    hidden: Tensor  # (E, D), or (2E, D) with SwiGLU
    hidden_bias: Tensor
    out: Tensor  # (D, E)
    out_bias: Tensor
    query: Tensor | None = None  # (K) fp32
    key: Tensor | None = None

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self[: 2 * NUM_LAYERS : 2]  # type: ignore[return-value]


class FinalLayerWeights(NamedTuple):
    """Parameters of the final layer: its modulation, and the projection from the width to patches."""

    modulation: Tensor  # (2D, D)
    modulation_bias: Tensor
    out: Tensor  # (F, D)
    out_bias: Tensor


class BlockVariant(NamedTuple):
    """Settings of a block: RMSNorm, SwiGLU, and cos and sin (T, K / 2) fp32 for rotation or None."""

    num_heads: int
    eps: float = 1e-6
    rms: bool = False
    swiglu: bool = False
    cos: Tensor | None = None
    sin: Tensor | None = None


has_global_hooks: Callable[[], bool] = nn.modules.module._has_any_global_hook
"""Return whether a global module hook exists, which must receive the calls of every module."""


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module has no subclass, hook or replaced forward that must receive its calls."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return type(module) is kind and "forward" not in module.__dict__ and not any(hooks)


def all_operators_use_c() -> bool:
    return all(backend_of(part) == "c" for part in PARTS_OF_BLOCK)


def accepts_block(x: Tensor, c: Tensor, weights: BlockWeights | FinalLayerWeights) -> bool:
    """Return whether `block` or `final_layer` accepts these inputs, of which all or none require a gradient."""
    if traced(x) or not all_operators_use_c():
        return False
    layers: tuple[Tensor, ...] = weights[: 2 * NUM_LAYERS]  # type: ignore[assignment]
    norms = [weight for weight in weights[2 * NUM_LAYERS :] if weight is not None]
    parameters = (*layers, *norms)
    if any(type(weight) is not Parameter or not weight.is_contiguous() for weight in parameters):
        return False
    if any(weight.dtype is not torch.float32 for weight in norms):
        return False
    requires_grad = {tensor.requires_grad for tensor in (x, c, *parameters)}
    if torch.is_grad_enabled() and len(requires_grad) > 1:
        return False
    if torch.is_autocast_enabled("cpu"):
        one_type = torch.promote_types(x.dtype, torch.get_autocast_dtype("cpu")) is x.dtype
    else:
        one_type = all(tensor.dtype is x.dtype for tensor in (c, *layers))
    if not one_type:
        return False
    return unsupported_reason("block", {"x": x, "c": c, **weights._asdict()}) is None


def block(x: Tensor, c: Tensor, weights: BlockWeights, kind: BlockVariant) -> Tensor:
    """Apply a DiT block with adaLN-Zero (Peebles & Xie 2023, section 3.2) that `accepts_block` has accepted.

    Bitwise identical to the separate operators. Weights with an attribute `flat_grad` receive their gradients there. x is
    (N, T, D), c (N, D); the result (N, T, D) has the type of the residual connections.
    """
    log_default()
    dtype = type_of_products(x)
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = dithc_block.apply(x, c, *weights, kind, dtype)  # type: ignore[no-untyped-call]
        return out
    inferred: Tensor = _forward(dense(x), dense(c), weights, kind, dtype, keep=False)[0]
    return inferred


def type_of_products(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def modulated(x: Tensor, modulation: Tensor, weights: BlockWeights, kind: BlockVariant) -> Tensor:
    """Apply `block` without gradients, from its modulation (N, 6D) in the type of the products instead of c."""
    out: Tensor = _forward(x, None, weights, kind, modulation.dtype, keep=False, modulation=modulation)[0]
    return out


def final_layer(x: Tensor, active: Tensor, weights: FinalLayerWeights, kind: BlockVariant) -> Tensor:
    """Apply the accepted final layer (Peebles & Xie 2023, figure 3) without gradients; `active` (N, D) is SiLU of c."""
    linear, dtype = raw("linear_forward"), type_of_products(x)
    shift, scale = linear(active, weights.modulation, weights.modulation_bias, dtype).chunk(2, dim=1)  # (N, D) each
    normed, *_ = raw("adarms_forward" if kind.rms else "adaln_forward")(x, shift, scale, kind.eps, dtype)  # (N, T, D)
    patches: Tensor = linear(normed, weights.out, weights.out_bias, dtype)
    return patches


class dithc_block(torch.autograd.Function):  # a profiler shows the class name
    @staticmethod
    def forward(ctx: Any, x: Tensor, c: Tensor, *settings: Any) -> Tensor:
        *tensors, ctx.kind, ctx.dtype = settings
        weights = BlockWeights(*tensors)
        ctx.direct = True
        ctx.parameters = [gradients.flat_parameter(ctx, weight) for weight in weights.matrices]
        x, c = dense(x), dense(c)
        out, *saved = _forward(x, c, weights, ctx.kind, ctx.dtype, keep=True)
        ctx.save_for_backward(x, c, *weights.matrices, weights.query, weights.key, *saved)
        first: Tensor = out
        return first

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        layers = _Layers(ctx)
        try:
            dx, dc = _backward(ctx, dense(dout), layers)
        except BaseException:
            layers.restore()
            raise
        return dx, dc, *layers.gradients, None, None


class _Layers:
    """Linear layers of a node in its backward pass. Calls set `gradients`, in the order of `BlockWeights`."""

    def __init__(self, ctx: Any) -> None:
        self.gradients: list[Tensor | None] = [None] * len(BlockWeights._fields)
        self._ctx = ctx
        self._previous: dict[int, Tensor | None] = {}

    def __call__(self, number: int, dy: Tensor, x: Tensor, weight: Tensor, *, gelu_at: Tensor | None = None) -> Tensor:
        """Return the gradient of x, or of `gelu_at` if x is GELU(gelu_at)."""
        i, parameter = 2 * number, self._ctx.parameters[number]
        previous = None if parameter is None else parameter.grad
        layer = gradients.Layer(ALL, True, parameter, FIRST_WEIGHT + i)
        dx, *self.gradients[i : i + 2] = gradients.layer_gradients(self._ctx, dy, x, weight, layer, gelu_at=gelu_at)
        self._previous[number] = previous
        assert dx is not None
        return dx

    def restore(self) -> None:
        """Restore every `.grad` tensor after a failure. Values that completed products added remain."""
        for number, previous in self._previous.items():
            if self._ctx.parameters[number] is not None:
                restore_grad(self._ctx.parameters[number], previous)


def _forward(
    x: Tensor,
    c: Tensor | None,
    weights: BlockWeights,
    kind: BlockVariant,
    dtype: torch.dtype,
    *,
    keep: bool,
    modulation: Tensor | None = None,
) -> tuple[Any, ...]:
    """Return the result and the tensors of `_backward`, in its order. Without `keep`, optional tensors are None."""
    w = weights
    linear, gated = raw("linear_forward"), raw("linear_gate_residual_forward")
    norm = raw("adarms_forward" if kind.rms else "adaln_forward")
    with sequence():
        active = None if c is None else raw("silu_forward")(c)  # (N, D)
        if modulation is None:
            modulation = linear(active, w.modulation, w.modulation_bias, dtype)  # (N, 6D)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(NUM_CONDITIONS, dim=1)  # (N, D) each
        normed_a, *stats_a = norm(x, shift_a, scale_a, kind.eps, dtype)  # (N, T, D), (N, T) once or twice
        qkv = linear(normed_a, w.qkv, w.qkv_bias, dtype)  # (N, T, 3D)
        heads = qkv
        if kind.cos is not None or w.query is not None:
            constants = (kind.cos, kind.sin, w.query, w.key)
            heads = raw("rotate_heads_forward")(qkv, kind.num_heads, kind.eps, *constants)  # (N, T, 3D)
        mixed, lse = raw("attention_forward")(heads, kind.num_heads)  # (N, T, D), (N, H, T)
        stream, branch_a = gated(mixed, w.projection, w.projection_bias, gate_a, x, dtype, keep=keep)  # (N, T, D) each
        normed_m, *stats_m = norm(stream, shift_m, scale_m, kind.eps, dtype)
        if kind.swiglu:
            before = linear(normed_m, w.hidden, w.hidden_bias, dtype)  # (N, T, 2E)
            hidden = raw("swiglu_forward")(before)  # (N, T, E)
        else:
            hidden, before = raw("linear_gelu_forward")(
                normed_m, w.hidden, w.hidden_bias, dtype, keep=keep
            )  # (N, T, E)
        out, branch_m = gated(hidden, w.out, w.out_bias, gate_m, stream, dtype, keep=keep)  # (N, T, D) each
    # the gradient of a rotation without norm does not need qkv
    saved_qkv = qkv if w.query is not None and heads is not qkv else None
    attention_saved = (normed_a, saved_qkv, heads, mixed, lse, branch_a)
    return out, active, modulation, *attention_saved, stream, normed_m, hidden, before, branch_m, *stats_a, *stats_m


def _backward(ctx: Any, dout: Tensor, layers: _Layers) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and c. Gradients of weights are stored in `layers`."""
    x, c, *saved = ctx.saved_tensors
    weights, (query, key, active, modulation, *saved) = saved[:NUM_LAYERS], saved[NUM_LAYERS:]
    normed_a, qkv, heads, mixed, lse, branch_a, stream, normed_m, hidden, before, branch_m, *stats = saved
    stats_a, stats_m = stats[: len(stats) // 2], stats[len(stats) // 2 :]
    _, scale_a, gate_a, _, scale_m, gate_m = modulation.chunk(NUM_CONDITIONS, dim=1)  # (N, D) each
    kind, gate = ctx.kind, gradients.kernel(ctx, "gate_residual_backward")
    norm = gradients.kernel(ctx, "adarms_backward" if kind.rms else "adaln_backward")
    with sequence():
        dbranch_m, dgate_m = gate(dout, gate_m, branch_m, dtype=ctx.dtype)  # (N, T, D), (N, D)
        if kind.swiglu:
            dhidden = layers(OUT, dbranch_m, hidden, weights[OUT])  # (N, T, E)
            dbefore = gradients.kernel(ctx, "swiglu_backward")(dhidden, before)  # (N, T, 2E)
        else:
            dbefore = layers(OUT, dbranch_m, hidden, weights[OUT], gelu_at=before)  # (N, T, E)
        dnormed_m = layers(HIDDEN, dbefore, normed_m, weights[HIDDEN])  # (N, T, D)
        dstream, dshift_m, dscale_m = norm(dnormed_m, stream, scale_m, *stats_m, dout)
        dbranch_a, dgate_a = gate(dstream, gate_a, branch_a, dtype=ctx.dtype)
        dmixed = layers(PROJECTION, dbranch_a, mixed, weights[PROJECTION])  # (N, T, D)
        dheads = gradients.kernel(ctx, "attention_backward")(dmixed, heads, mixed, lse, kind.num_heads)  # (N, T, 3D)
        dqkv = dheads
        if kind.cos is not None or query is not None:
            rotate_back = gradients.kernel(ctx, "rotate_heads_backward")
            dqkv, *layers.gradients[2 * NUM_LAYERS :] = rotate_back(
                *(dheads, qkv, kind.num_heads, kind.eps, kind.cos, kind.sin, query, key)
            )
        dnormed_a = layers(QKV, dqkv, normed_a, weights[QKV])
        dx, dshift_a, dscale_a = norm(dnormed_a, x, scale_a, *stats_a, dstream)
    dmodulation = torch.cat([dshift_a, dscale_a, dgate_a, dshift_m, dscale_m, dgate_m], dim=1)  # (N, 6D)
    with sequence():
        dactive = layers(MODULATION, dmodulation, active, weights[MODULATION])
        dc = gradients.kernel(ctx, "silu_backward")(dactive, c)
    return dx, dc
