"""Saved tensors and backward pass of each operator.

If autograd calls a function directly (`ctx.direct`), it calls raw kernels. For tracers it calls operators of torch.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.engine.hcops.autograd.grad_buffer import has_place, restore_grad, target
from dithc.engine.hcops.backend import raw
from dithc.engine.hcops.dispatch import dense

Gradients = tuple[Tensor | None, ...]
NUM_LINEAR = 3  # gradients of a linear layer: x, weight and bias


class Layer(NamedTuple):
    """Linear layer of an autograd node.

    `needs` selects the gradients of x, weight and bias. `parameter` is the weight if its gradient may go to the flat
    buffer. `weight_index` is the index of the weight among the input tensors of the node.
    """

    needs: Sequence[bool]
    has_bias: bool
    parameter: Any
    weight_index: int = 1


def keep_linear(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    """Save also the input of the GELU, if it is the second output."""
    x, weight, bias, _dtype = inputs
    _keep_layer(ctx, weight, bias)
    ctx.save_for_backward(x, weight, *outputs[1:])


def linear(ctx: Any, dy: Tensor) -> Gradients:
    x, weight, *before = ctx.saved_tensors
    dy = kernel(ctx, "gelu_backward")(dense(dy), *before) if before else dense(dy)  # (..., F)
    return (*layer_gradients(ctx, dy, x, weight, _layer(ctx)), None)


def keep_linear_gate_residual(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, weight, bias, gate, residual, ctx.dtype = inputs
    _keep_layer(ctx, weight, bias)
    ctx.residual_dtype = residual.dtype
    ctx.save_for_backward(x, weight, gate, outputs[1])


def linear_gate_residual(ctx: Any, dout: Tensor) -> Gradients:
    x, weight, gate, y = ctx.saved_tensors
    dout = dense(dout)
    dy, dgate = kernel(ctx, "gate_residual_backward")(dout, gate, y, dtype=ctx.dtype)
    return (*layer_gradients(ctx, dy, x, weight, _layer(ctx)), dgate, dout.to(ctx.residual_dtype), None)


def keep_mlp(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, weight1, bias1, weight2, bias2, gate, residual, ctx.dtype = inputs
    _, hidden, before, y = outputs
    ctx.has_bias = bias1 is not None, bias2 is not None
    ctx.parameters = flat_parameter(ctx, weight1), flat_parameter(ctx, weight2)
    ctx.residual_dtype = residual.dtype
    ctx.save_for_backward(x, weight1, before, hidden, weight2, gate, y)


def mlp(ctx: Any, dout: Tensor) -> Gradients:
    """Compute the gradient before the GELU in the second layer's product, then the gradients of the first layer."""
    x, weight1, before, hidden, weight2, gate, y = ctx.saved_tensors
    dout, needs, has_bias = dense(dout), ctx.needs_input_grad, ctx.has_bias
    dy, dgate = kernel(ctx, "gate_residual_backward")(dout, gate, y, dtype=ctx.dtype)
    first = Layer(needs[:NUM_LINEAR], has_bias[0], ctx.parameters[0])
    second = Layer((any(first.needs), *needs[3:5]), has_bias[1], ctx.parameters[1], 2 + has_bias[0])
    dbefore, *second_gradients = layer_gradients(ctx, dy, hidden, weight2, second, gelu_at=before)
    try:
        first_gradients = (None,) * NUM_LINEAR if dbefore is None else layer_gradients(ctx, dbefore, x, weight1, first)
    except BaseException:
        parameter, dweight2 = second.parameter, second_gradients[0]
        if parameter is not None and dweight2 is not None and dweight2.data_ptr() == parameter.flat_grad.data_ptr():
            restore_grad(parameter, dweight2)  # keep the gradient, as if the second layer were a separate node
        raise
    return (*first_gradients, *second_gradients, dgate, dout.to(ctx.residual_dtype), None)


def keep_norm(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, _shift, scale, _eps, _dtype = inputs
    ctx.save_for_backward(x, scale, *outputs[1:])


def _norm_backward(name: str, ctx: Any, dy: Tensor | None, dstream: Tensor | None = None) -> Gradients:
    """`dstream`, the gradient of the residual stream, is added in the same pass over memory."""
    if dy is None:
        return dstream, None, None, None, None
    addend = () if dstream is None else (dense(dstream),)
    dx, dshift, dscale = kernel(ctx, name)(dense(dy), *ctx.saved_tensors, *addend)
    return dx, dshift, dscale, None, None


def keep_gate_residual(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    x, gate, y = inputs
    ctx.x_dtype = x.dtype
    ctx.save_for_backward(gate, y)


def gate_residual(ctx: Any, dout: Tensor) -> Gradients:
    gate, y = ctx.saved_tensors
    dout = dense(dout)
    dy, dgate = kernel(ctx, "gate_residual_backward")(dout, gate, y, dtype=y.dtype)
    return dout.to(ctx.x_dtype), dgate, dy


def keep_attention(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    qkv, ctx.num_heads = inputs
    ctx.save_for_backward(qkv, *outputs)


def attention(ctx: Any, dout: Tensor) -> Gradients:
    qkv, out, lse = ctx.saved_tensors
    return kernel(ctx, "attention_backward")(dense(dout), qkv, out, lse, ctx.num_heads), None


def keep_rotate_heads(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    """Save qkv only for the gradient of the norm; the gradient of a rotation does not need it."""
    qkv, ctx.num_heads, ctx.eps, cos, sin, query_weight, key_weight = inputs
    ctx.save_for_backward(None if query_weight is None else qkv, cos, sin, query_weight, key_weight)


def rotate_heads(ctx: Any, dout: Tensor) -> Gradients:
    qkv, *constants = ctx.saved_tensors
    backward = kernel(ctx, "rotate_heads_backward")
    dqkv, *dweights = backward(dense(dout), qkv, ctx.num_heads, ctx.eps, *constants)
    return dqkv, None, None, None, None, *((None, None) if qkv is None else dweights)


def keep_input(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0])


def keep_output(ctx: Any, _: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(outputs[0])


def _saved_backward(name: str, ctx: Any, dy: Tensor) -> Gradients:
    return (kernel(ctx, name)(dense(dy), *ctx.saved_tensors),)


def keep_mse(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    ctx.y_dtype = inputs[1].dtype
    ctx.save_for_backward(*inputs)


def mse(ctx: Any, dout: Tensor) -> Gradients:
    x, y = ctx.saved_tensors
    dx = kernel(ctx, "mse_backward")(dense(dout), x, y)
    return dx, -dx.to(ctx.y_dtype) if ctx.needs_input_grad[1] else None


def keep_patchify(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    image, ctx.p, ctx.order = inputs
    ctx.rows = image.shape[2] // ctx.p


def patchify(ctx: Any, dy: Tensor) -> Gradients:
    return kernel(ctx, "unpatchify_forward")(dense(dy), ctx.rows, ctx.p, ctx.order), None, None


def keep_unpatchify(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    _patches, _rows, ctx.p, ctx.order = inputs


def unpatchify(ctx: Any, dy: Tensor) -> Gradients:
    return kernel(ctx, "patchify_forward")(dense(dy), ctx.p, ctx.order), None, None, None


def keep_scale_add(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    x, y, ctx.alpha, ctx.beta = inputs
    ctx.dtypes = (x.dtype, None if y is None else y.dtype)


def scale_add(ctx: Any, dy: Tensor) -> Gradients:
    scale, dy = kernel(ctx, "scale_add_forward"), dense(dy)
    needs = ctx.needs_input_grad
    dx = scale(dy, None, ctx.alpha, 0.0).to(ctx.dtypes[0]) if needs[0] else None
    return dx, scale(dy, None, ctx.beta, 0.0).to(ctx.dtypes[1]) if needs[1] else None, None, None


def _keep_layer(ctx: Any, weight: Tensor, bias: Tensor | None) -> None:
    ctx.has_bias = bias is not None
    ctx.parameter = flat_parameter(ctx, weight)


def flat_parameter(ctx: Any, weight: Tensor) -> Tensor | None:
    """Return the weight if it has a place in the flat buffer; the saved tensor may be another object."""
    return weight if ctx.direct and has_place(weight) else None


def _layer(ctx: Any) -> Layer:
    return Layer(ctx.needs_input_grad[:NUM_LINEAR], ctx.has_bias, ctx.parameter)


def layer_gradients(
    ctx: Any, dy: Tensor, x: Tensor, weight: Tensor, layer: Layer, *, gelu_at: Tensor | None = None
) -> Gradients:
    """Return the gradients of x (or of `gelu_at`, if x is GELU(gelu_at)), weight and bias of a linear layer, given dy."""
    backward, needs = kernel(ctx, "linear_backward"), layer.needs
    if not ctx.direct:
        traced = backward(dy, x, weight, layer.has_bias, list(needs), gelu_at=gelu_at)
        return tuple(gradient if needed else None for gradient, needed in zip(traced, needs, strict=True))
    out, accumulate, previous = None, False, None
    if needs[1] and layer.parameter is not None:
        previous = layer.parameter.grad
        out, accumulate = target(layer.parameter, ctx.next_functions[layer.weight_index][0])
    try:
        results: Gradients = backward(dy, x, weight, layer.has_bias, needs, out, accumulate=accumulate, gelu_at=gelu_at)
    except BaseException:
        if out is not None:
            restore_grad(layer.parameter, previous)
        raise
    return results


def kernel(ctx: Any, name: str) -> Callable[..., Any]:
    """Return the raw kernel, or for tracers its operator of torch."""
    if not ctx.direct:
        operator: Callable[..., Any] = getattr(torch.ops.dithc, name.removesuffix("_forward"))
        return operator
    if torch.is_grad_enabled():
        got, fix = "a backward pass with create_graph=True", "choose the back end with hcops.use('reference')"
        raise user_error("second derivative of a fast operator", got=got, expected="first derivatives only", fix=fix)
    return raw(name)


Keep = Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None]

FUNCTIONS: dict[str, tuple[Keep, Callable[..., Gradients]]] = {
    "linear": (keep_linear, linear),
    "linear_gelu": (keep_linear, linear),
    "linear_gate_residual": (keep_linear_gate_residual, linear_gate_residual),
    "mlp": (keep_mlp, mlp),
    **{name: (keep_norm, partial(_norm_backward, f"{name}_backward")) for name in ("adaln", "adarms")},
    "gate_residual": (keep_gate_residual, gate_residual),
    "attention": (keep_attention, attention),
    "rotate_heads": (keep_rotate_heads, rotate_heads),
    "mse": (keep_mse, mse),
    "patchify": (keep_patchify, patchify),
    "unpatchify": (keep_unpatchify, unpatchify),
    "scale_add": (keep_scale_add, scale_add),
    **{name: (keep_input, partial(_saved_backward, f"{name}_backward")) for name in ("silu", "gelu", "swiglu")},
    **{name: (keep_output, partial(_saved_backward, f"{name}_backward")) for name in ("softmax", "exp", "tanh")},
}
"""Functions of each operator: save tensors for the backward pass, and compute the gradients of all inputs."""
