"""What each operator keeps for its backward pass, and that pass.

Every function here serves two callers (see `custom.py`): autograd directly, then it calls raw kernels; and the tracers of torch,
then it calls operators of torch. `ctx.direct` tells which.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dithc.hcops.active import backend_of, raw
from dithc.hcops.flat import abandon, target
from dithc.log import problem

Gradients = tuple[Tensor | None, ...]
# Gradients of x, weight and bias of a linear layer.
NUM_LINEAR = 3


def keep_linear(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    x, weight, bias, _dtype = inputs
    _keep_layer(ctx, weight, bias)
    ctx.save_for_backward(x, weight)


def linear(ctx: Any, dy: Tensor) -> Gradients:
    x, weight = ctx.saved_tensors
    return (*_layer(ctx, _dense(dy), x, weight), None)


def keep_linear_gelu(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, weight, bias, _dtype = inputs
    _keep_layer(ctx, weight, bias)
    ctx.save_for_backward(x, weight, outputs[1])


def linear_gelu(ctx: Any, dy: Tensor) -> Gradients:
    x, weight, before = ctx.saved_tensors
    dbefore = _kernel(ctx, "gelu_backward")(_dense(dy), before)  # (..., F)
    return (*_layer(ctx, dbefore, x, weight), None)


def keep_linear_gate_residual(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, weight, bias, gate, residual, ctx.dtype = inputs
    _keep_layer(ctx, weight, bias)
    ctx.residual_dtype = residual.dtype
    ctx.save_for_backward(x, weight, gate, outputs[1])


def linear_gate_residual(ctx: Any, dout: Tensor) -> Gradients:
    x, weight, gate, y = ctx.saved_tensors
    dout = _dense(dout)
    dy, dgate = _gate(ctx, dout, gate, y, ctx.dtype)
    return (*_layer(ctx, dy, x, weight), dgate, dout.to(ctx.residual_dtype), None)


def keep_adaln(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    x, _shift, scale, _eps, _dtype = inputs
    _, mean, rstd = outputs
    ctx.save_for_backward(x, scale, mean, rstd)


def adaln(ctx: Any, dy: Tensor) -> Gradients:
    x, scale, mean, rstd = ctx.saved_tensors
    dx, dshift, dscale = _kernel(ctx, "adaln_backward")(_dense(dy), x, scale, mean, rstd)
    return dx, dshift, dscale, None, None


def adaln_and_stream(ctx: Any, dy: Tensor | None, dstream: Tensor | None) -> Gradients:
    """As `adaln`; what comes back along the stream is added here, by our threads: torch's would keep their core busy."""
    if dy is None:
        return dstream, None, None, None, None
    dx, *others = adaln(ctx, dy)
    if dx is not None and dstream is not None:
        _add_to(dx, _dense(dstream))
    return dx, *others


def keep_gate_residual(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    x, gate, y = inputs
    ctx.x_dtype = x.dtype
    ctx.save_for_backward(gate, y)


def gate_residual(ctx: Any, dout: Tensor) -> Gradients:
    gate, y = ctx.saved_tensors
    dout = _dense(dout)
    dy, dgate = _gate(ctx, dout, gate, y, y.dtype)
    return dout.to(ctx.x_dtype), dgate, dy


def keep_attention(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    qkv, ctx.num_heads = inputs
    out, lse = outputs
    ctx.save_for_backward(qkv, out, lse)


def attention(ctx: Any, dout: Tensor) -> Gradients:
    qkv, out, lse = ctx.saved_tensors
    return _kernel(ctx, "attention_backward")(_dense(dout), qkv, out, lse, ctx.num_heads), None


def keep_input(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0])


def keep_output(ctx: Any, _: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(outputs[0])


def silu(ctx: Any, dy: Tensor) -> Gradients:
    return (_kernel(ctx, "silu_backward")(_dense(dy), *ctx.saved_tensors),)


def gelu(ctx: Any, dy: Tensor) -> Gradients:
    return (_kernel(ctx, "gelu_backward")(_dense(dy), *ctx.saved_tensors),)


def softmax(ctx: Any, dy: Tensor) -> Gradients:
    return (_kernel(ctx, "softmax_backward")(_dense(dy), *ctx.saved_tensors),)


def exp(ctx: Any, dy: Tensor) -> Gradients:
    (out,) = ctx.saved_tensors
    return (dy * out,)


def tanh(ctx: Any, dy: Tensor) -> Gradients:
    (out,) = ctx.saved_tensors
    return (dy * (1 - out.float().square()).to(dy.dtype),)


def keep_mse(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    ctx.y_dtype = inputs[1].dtype
    ctx.save_for_backward(*inputs)


def mse(ctx: Any, dout: Tensor) -> Gradients:
    x, y = ctx.saved_tensors
    dx = _kernel(ctx, "mse_backward")(_dense(dout), x, y)
    return dx, -dx.to(ctx.y_dtype) if ctx.needs_input_grad[1] else None


def keep_patchify(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    image, ctx.p, ctx.order = inputs
    ctx.rows = image.shape[2] // ctx.p


def patchify(ctx: Any, dy: Tensor) -> Gradients:
    return _kernel(ctx, "unpatchify_forward")(_dense(dy), ctx.rows, ctx.p, ctx.order), None, None


def keep_unpatchify(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    _patches, _rows, ctx.p, ctx.order = inputs


def unpatchify(ctx: Any, dy: Tensor) -> Gradients:
    return _kernel(ctx, "patchify_forward")(_dense(dy), ctx.p, ctx.order), None, None, None


def keep_scale_add(ctx: Any, inputs: tuple[Any, ...], _: tuple[Tensor, ...]) -> None:
    x, y, ctx.alpha, ctx.beta = inputs
    ctx.dtypes = (x.dtype, None if y is None else y.dtype)


def scale_add(ctx: Any, dy: Tensor) -> Gradients:
    scale, dy = _kernel(ctx, "scale_add_forward"), _dense(dy)
    needs = ctx.needs_input_grad
    dx = scale(dy, None, ctx.alpha, 0.0).to(ctx.dtypes[0]) if needs[0] else None
    return dx, scale(dy, None, ctx.beta, 0.0).to(ctx.dtypes[1]) if needs[1] else None, None, None


def _keep_layer(ctx: Any, weight: Tensor, bias: Tensor | None) -> None:
    ctx.has_bias = bias is not None
    # The parameter itself: under recomputation the saved tensor is another object without its attributes.
    ctx.parameter = weight if ctx.direct and hasattr(weight, "flat_grad") else None


def _layer(ctx: Any, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
    """The gradients of x, weight and bias of a linear layer whose output's gradient is dy."""
    needs = ctx.needs_input_grad[:NUM_LINEAR]
    backward = _kernel(ctx, "linear_backward")
    if not ctx.direct:
        traced = backward(dy, x, weight, ctx.has_bias, list(needs))
        return tuple(gradient if needed else None for gradient, needed in zip(traced, needs, strict=True))
    into, accumulate, held = None, False, None
    if needs[1] and ctx.parameter is not None:
        held = ctx.parameter.grad
        into, accumulate = target(ctx.parameter, ctx.next_functions[1][0])
    try:
        written: Gradients = backward(dy, x, weight, ctx.has_bias, needs, into, accumulate=accumulate)
    except BaseException:
        if into is not None:
            abandon(ctx.parameter, held)
        raise
    return written


def _gate(ctx: Any, dout: Tensor, gate: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """dy in `dtype` and dgate."""
    gradients: tuple[Tensor, Tensor] = _kernel(ctx, "gate_residual_backward")(dout, gate, y, dtype=dtype)
    return gradients


def _add_to(total: Tensor, addend: Tensor) -> None:
    if backend_of("scale_add") == "c":
        raw("scale_add_forward")(total, addend, 1.0, 1.0, out=total)
    else:
        total.add_(addend)


def _kernel(ctx: Any, name: str) -> Callable[..., Any]:
    """The raw kernel, or for tracers the operator of torch around it."""
    if not ctx.direct:
        operator: Callable[..., Any] = getattr(torch.ops.dithc, name.removesuffix("_forward"))
        return operator
    if torch.is_grad_enabled():
        raise problem(
            "second derivative of a fast operator",
            got="a backward pass with create_graph=True",
            expected="first derivatives only",
            remedy="choose the back end with hcops.use('reference')",
        )
    return raw(name)


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()
