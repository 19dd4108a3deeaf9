"""Raw memory-bound kernels of the C back end: functions of elements, of rows, and of all parameters.

Legend: N batch, T tokens, D width, E width of a hidden layer, C channels, R and S rows and columns of patches, p side
of a patch (T = R * S).
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dithc.engine import native
from dithc.engine.hcops.c.library import functions, pool
from dithc.engine.hcops.checks import (
    TYPES,
    AdamwTensors,
    argument_error,
    array,
    check_halves,
    check_patches,
    check_rows,
    check_samples,
    check_shape,
    check_stream,
    condition,
    fp32,
    typed,
    wrong_shape,
)


def adaln_forward(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype, *, op: str = "adaln"
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Normalize x (N, T, D), then apply shift and scale (N, D) of equal type and strides; return out (`dtype`), mean, rstd."""
    n, t, d = check_stream(op, "x", x)
    x_address, x_type = array(op, "x", x)
    shift_address, shift_type, shift_stride = condition(op, "shift", shift, (n, d))
    scale_address, _, stride = condition(op, "scale", scale, (n, d))
    if shift.dtype != scale.dtype or (stride != shift_stride and n > 1):
        raise wrong_shape(op, "shift", shift, expected=f"type and strides of scale: {scale.dtype}, {scale.stride()}")
    mean = None if op == "adarms" else pool().empty((n, t), torch.float32)
    out, rstd = pool().empty(x.shape, dtype), pool().empty((n, t), torch.float32)
    functions().hc_adaln_forward(
        *(native.context(), n, t, d, eps, x_address, x_type, shift_address, scale_address, shift_type, stride),
        *(out.data_ptr(), TYPES[dtype], None if mean is None else mean.data_ptr(), rstd.data_ptr()),
    )
    return out, mean, rstd  # (N, T, D), (N, T), (N, T)


def adaln_backward(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor | None, rstd: Tensor, dstream: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx plus `dstream` (N, T, D), dshift and dscale, in the types of their inputs. RMSNorm without `mean`."""
    op = "adaln_backward"
    n, t, d = check_stream(op, "x", x)
    check_shape(op, (n, t, d), dy=dy, dstream=dstream)
    check_shape(op, (n, t), mean=mean, rstd=rstd)
    scale_address, scale_type, stride = condition(op, "scale", scale, (n, d))
    dx = pool().empty(x.shape, x.dtype)
    dshift, dscale = scale.new_empty((n, d)), scale.new_empty((n, d))
    x_address, x_type = array(op, "x", x)
    functions().hc_adaln_backward(
        *(native.context(), n, t, d, *array(op, "dy", dy), x_address, x_type, scale_address, scale_type, stride),
        *(None if mean is None else fp32(op, "mean", mean), fp32(op, "rstd", rstd)),
        *((None, 0) if dstream is None else array(op, "dstream", dstream)),
        *(dx.data_ptr(), x_type, dshift.data_ptr(), dscale.data_ptr(), scale_type),
    )
    return dx, dshift, dscale  # (N, T, D), (N, D), (N, D)


def gate_residual_forward(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """Return x + gate * y for x and y (N, T, D) and gate (N, D), in the widest type."""
    op = "gate_residual"
    n, t, d = check_stream(op, "x", x)
    check_shape(op, (n, t, d), y=y)
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), gate.dtype)
    out = pool().empty(x.shape, dtype)
    functions().hc_gate_residual_forward(
        *(native.context(), n, t, d, *array(op, "x", x), *condition(op, "gate", gate, (n, d)), *array(op, "y", y)),
        *(out.data_ptr(), TYPES[dtype]),
    )
    return out  # (N, T, D)


def gate_residual_backward(dout: Tensor, gate: Tensor, y: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return dy (N, T, D) in `dtype` and dgate (N, D) in gate's type. The gradient of x is dout itself."""
    op = "gate_residual_backward"
    n, t, d = check_stream(op, "dout", dout)
    check_shape(op, (n, t, d), y=y)
    gate_address, gate_type, stride = condition(op, "gate", gate, (n, d))
    dy, dgate = pool().empty(y.shape, dtype), gate.new_empty((n, d))
    functions().hc_gate_residual_backward(
        *(native.context(), n, t, d, *array(op, "dout", dout), gate_address, gate_type, stride, *array(op, "y", y)),
        *(dy.data_ptr(), TYPES[dtype], dgate.data_ptr(), gate_type),
    )
    return dy, dgate


def _run(name: str, op: str, out: Tensor, *sizes: int, **inputs: Tensor) -> Tensor:
    """Run hc_<name> with sizes, then address and type of each input and of `out`; return `out`."""
    fields = [field for argument, tensor in inputs.items() for field in array(op, argument, tensor)]
    getattr(functions(), f"hc_{name}")(native.context(), *sizes, *fields, out.data_ptr(), TYPES[out.dtype])
    return out


def _map(op: str, function: int, x: Tensor) -> Tensor:
    return _run("map", op, pool().empty(x.shape, x.dtype), function, x.numel(), x=x)


def _map_backward(op: str, function: int, dy: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of `_map`; for exp and tanh, `x` is the result of the forward pass."""
    check_shape(op, x.shape, dy=dy)
    return _run("map_backward", op, pool().empty(x.shape, x.dtype), function, x.numel(), dy=dy, x=x)


# In the order of hc_function.
FUNCTIONS = ("exp", "tanh", "gelu", "silu", "gelu_erf")
exp_forward, tanh_forward, gelu_forward, silu_forward, gelu_erf_forward = (
    partial(_map, name, number) for number, name in enumerate(FUNCTIONS)
)
exp_backward, tanh_backward, gelu_backward, silu_backward, gelu_erf_backward = (
    partial(_map_backward, f"{name}_backward", number) for number, name in enumerate(FUNCTIONS)
)


def swiglu_forward(x: Tensor) -> Tensor:
    """Apply SwiGLU to x (N, T, 2E), gates before values."""
    n, t, e = check_halves("swiglu", "x", x)
    return _run("swiglu_forward", "swiglu", pool().empty((n, t, e), x.dtype), n * t, e, x=x)  # (N, T, E)


def swiglu_backward(dy: Tensor, x: Tensor) -> Tensor:
    op = "swiglu_backward"
    n, t, e = check_halves(op, "x", x)
    check_shape(op, (n, t, e), dy=dy)
    return _run(op, op, pool().empty(x.shape, x.dtype), n * t, e, dy=dy, x=x)  # (N, T, 2E)


def scale_add_forward(x: Tensor, y: Tensor | None, alpha: float, beta: float) -> Tensor:
    """Return alpha * x + beta * y in the wider type; y has x's shape, or None for alpha * x."""
    check_shape("scale_add", x.shape, y=y)
    out = pool().empty(x.shape, x.dtype if y is None else torch.promote_types(x.dtype, y.dtype))
    functions().hc_scale_add(
        *(native.context(), x.numel(), alpha, *array("scale_add", "x", x), 0.0 if y is None else beta),
        *((None, 0) if y is None else array("scale_add", "y", y)),
        *(out.data_ptr(), TYPES[out.dtype]),
    )
    return out


def softmax_forward(x: Tensor) -> Tensor:
    return _run("softmax_forward", "softmax", pool().empty(x.shape, x.dtype), *check_rows("softmax", x), x=x)


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    """Return dx for dy and the result y of the forward pass."""
    op = "softmax_backward"
    check_shape(op, y.shape, dy=dy)
    return _run(op, op, pool().empty(y.shape, y.dtype), *check_rows(op, y), dy=dy, y=y)


def mse_forward(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of (x - y)^2 over all dimensions except the first, (N) fp32."""
    check_shape("mse", x.shape, y=y)
    out = torch.empty(x.shape[:1], dtype=torch.float32, device="cpu")
    rows, columns = check_samples("mse", x)
    functions().hc_mse_forward(
        native.context(), rows, columns, *array("mse", "x", x), *array("mse", "y", y), out.data_ptr()
    )
    return out


def mse_backward(dout: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of x, in its type, for dout (N) fp32. The gradient of y is its negative."""
    op = "mse_backward"
    check_shape(op, x.shape, y=y)
    check_shape(op, x.shape[:1], dout=dout)
    dx = pool().empty(x.shape, x.dtype)
    return _run(op, op, dx, *check_samples(op, x), fp32(op, "dout", dout), x=x, y=y)


def patchify_forward(image: Tensor, p: int, order: int) -> Tensor:
    """Cut image (N, C, R * p, S * p) into patches (N, T, C * p * p), elements (C, p, p) or for order 1 (p, p, C)."""
    check_patches("patchify", "image", image, p, order)
    n, c, height, width = image.shape
    r, s = height // p, width // p
    out = pool().empty((n, r * s, c * p * p), image.dtype)
    return _run("patchify", "patchify", out, n, c, r, s, p, order, image=image)  # (N, T, C*p*p)


def unpatchify_forward(patches: Tensor, rows: int, p: int, order: int) -> Tensor:
    """Join patches (N, T, C * p * p) to images (N, C, R * p, S * p) with R = `rows`."""
    check_patches("unpatchify", "patches", patches, p, order, rows=rows)
    n, t, features = patches.shape
    c, s = features // (p * p), t // rows
    out = pool().empty((n, c, rows * p, s * p), patches.dtype)
    return _run("unpatchify", "unpatchify", out, n, c, rows, s, p, order, patches=patches)  # (N, C, height, width)


def sum_of_squares_forward(tensors: Sequence[Tensor]) -> float:
    """Return the sum of squares over all contiguous fp32 tensors, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    counts, addresses = _counts(tensors), _addresses("sum_of_squares", "tensors", tensors)
    functions().hc_sum_of_squares(
        native.context(), len(tensors), counts.data_ptr(), addresses.data_ptr(), total.data_ptr()
    )
    return total.item()


def adamw_forward(tensors: AdamwTensors, settings: native.AdamwSettings) -> None:
    weights, lists = tensors.weights, tensors._asdict()
    dtypes = {"shadows": torch.bfloat16}
    arrays = [
        None
        if group is None
        else _addresses("adamw", name, group, weights=weights, dtype=dtypes.get(name, torch.float32))
        for name, group in lists.items()
    ]
    counts = _counts(weights)
    functions().hc_adamw(
        *(native.context(), settings, len(weights), counts.data_ptr()),
        *(None if addresses is None else addresses.data_ptr() for addresses in arrays),
    )


def _addresses(
    op: str,
    name: str,
    tensors: Sequence[Tensor],
    *,
    weights: Sequence[Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return an array of pointers, as C reads it, to contiguous tensors of one type."""
    if weights is not None and len(tensors) != len(weights):
        raise argument_error(op, name, got=len(tensors), expected=len(weights), fix="one for each weight")
    addresses = [
        tensor.data_ptr()
        for tensor, expected in zip(tensors, weights or tensors, strict=True)
        if tensor.dtype is dtype and tensor.is_cpu and tensor.is_contiguous() and tensor.shape == expected.shape
    ]
    if len(addresses) != len(tensors) or any(address % dtype.itemsize for address in addresses):
        for index, tensor in enumerate(tensors):  # report the first unsupported tensor
            if weights is not None:
                check_shape(op, weights[index].shape, **{f"{name}[{index}]": tensor})
            typed(op, f"{name}[{index}]", tensor, dtype)
    return torch.tensor(addresses, dtype=torch.int64)


def _counts(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.numel() for tensor in tensors], dtype=torch.int64)
