"""Public memory-bound operators with gradients.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), E width of a hidden layer, C channels, R and S
rows and columns of patches (T = R * S), p side of a patch.
"""

import torch
from torch import Tensor

from dithc.engine.hcops import reference
from dithc.engine.hcops.autograd import AND_STREAM, OPERATORS, traced
from dithc.engine.hcops.checks import check_halves, check_patches, check_rotation
from dithc.engine.hcops.dispatch import dense, rows_dense, uses_reference

# Order of the elements of a patch: (C, p, p) for the patch embedding, (p, p, C) for the final layer.
CHANNELS_FIRST, CHANNELS_LAST = 0, 1


def adaln(x: Tensor, shift: Tensor, scale: Tensor, eps: float = 1e-6, *, rms: bool = False) -> Tensor:
    """Return norm(x) * (1 + scale) + shift, with the norm over D and without weights (Peebles & Xie, section 3.2).

    x is (N, T, D), shift and scale (N, D). `rms` uses x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019, equation 4).
    The type is autocast's if a fast back end is active under autocast, else the widest type of the inputs.
    """
    op = "adarms" if rms else "adaln"
    if uses_reference(op, x=x, shift=shift, scale=scale):
        return (reference.adarms if rms else reference.adaln)(x, shift, scale, eps)
    return OPERATORS[op](*_prepare(x, shift, scale, eps))


def adaln_and_stream(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float = 1e-6, *, rms: bool = False
) -> tuple[Tensor, Tensor]:
    """Return `adaln` and a view of x, which the residual stream should use; torch rejects in-place changes of it.

    The backward pass of the norm then adds the gradient of the stream. Otherwise torch would add the two gradients in a
    separate pass on its threads, which then spin on the cores that these kernels need.
    """
    op = "adarms" if rms else "adaln"
    if uses_reference(op, x=x, shift=shift, scale=scale) or traced(x):
        return adaln(x, shift, scale, eps, rms=rms), x
    out, stream = AND_STREAM[op].apply(*_prepare(x, shift, scale, eps))  # type: ignore[no-untyped-call]
    return out, stream


def gate_residual(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """Return x + gate * y (Peebles & Xie, section 3.2), in the widest type; `linear` can include it in its product.

    x and y are (N, T, D), gate (N, D).
    """
    if uses_reference("gate_residual", x=x, gate=gate, y=y):
        return reference.gate_residual(x, gate, y)
    return OPERATORS["gate_residual"](dense(x), rows_dense(gate), dense(y))


def rotate_heads(
    qkv: Tensor,
    num_heads: int,
    *,
    cos: Tensor | None,
    sin: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float = 1e-6,
) -> Tensor:
    """Apply RMSNorm, then rotation by position, to each head of q and k in qkv (N, T, 3D); v is unchanged.

    The norm over K (Henry et al. 2020, Dehghani et al. 2023) bounds scores. The rotation turns the pair (2i, 2i + 1) of
    token t by the angle (t, i), so that scores depend on differences of positions (Su et al. 2021, equation 34). cos
    and sin are (T, K / 2) fp32 without a gradient, or None; the weights are (K), or None to skip the norm.

    Raises:
        UserError: Shapes or types of the tensors do not match; the message names the argument.
    """
    check_rotation("rotate_heads", qkv, num_heads, cos, sin, query_weight, key_weight)
    constants = {"cos": cos, "sin": sin, "query_weight": query_weight, "key_weight": key_weight}
    if uses_reference("rotate_heads", qkv=qkv, **constants):
        return reference.rotate_heads(qkv, num_heads, cos, sin, query_weight, key_weight, eps)
    cos, sin, query_weight, key_weight = (None if t is None else dense(t.float()) for t in constants.values())
    return OPERATORS["rotate_heads"](dense(qkv), num_heads, eps, cos, sin, query_weight, key_weight)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(x[..., :E]) * x[..., E:] (Shazeer 2020, equation 6): (N, T, 2E) to (N, T, E), in x's type."""
    check_halves("swiglu", "x", x)
    return reference.swiglu(x) if uses_reference("swiglu", x=x) else OPERATORS["swiglu"](dense(x))


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x); any shape."""
    return reference.silu(x) if uses_reference("silu", x=x) else OPERATORS["silu"](dense(x))


def gelu(x: Tensor) -> Tensor:
    """Return the tanh form of the GELU (Hendrycks & Gimpel 2016, section 2); any shape."""
    return reference.gelu(x) if uses_reference("gelu", x=x) else OPERATORS["gelu"](dense(x))


def exp(x: Tensor) -> Tensor:
    """Return e^x; any shape."""
    return reference.exp(x) if uses_reference("exp", x=x) else OPERATORS["exp"](dense(x))


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent; any shape."""
    return reference.tanh(x) if uses_reference("tanh", x=x) else OPERATORS["tanh"](dense(x))


def softmax(x: Tensor) -> Tensor:
    """Return exp(x) divided by its sum over the last dimension."""
    return reference.softmax(x) if uses_reference("softmax", x=x) else OPERATORS["softmax"](dense(x))


def scale_add(x: Tensor, y: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """Return alpha * x + beta * y for x and y of one shape, in the wider type; alpha * x without y."""
    if uses_reference("scale_add", x=x, y=y):
        return reference.scale_add(x, y, alpha, beta)
    return OPERATORS["scale_add"](dense(x), None if y is None else dense(y), alpha, beta)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of (x - y)^2 over all dimensions except the first, (N) fp32."""
    return reference.mse(x, y) if uses_reference("mse", x=x, y=y) else OPERATORS["mse"](dense(x), dense(y))


def patchify(image: Tensor, p: int, *, order: int = CHANNELS_FIRST) -> Tensor:
    """Cut images (N, C, R * p, S * p) into patches (N, T, C * p * p), row by row, with elements in `order`."""
    is_reference = uses_reference("patchify", image=image)
    check_patches("patchify", "image", image, p, order)
    if is_reference:
        return reference.patchify(image, p, order)
    return OPERATORS["patchify"](dense(image), p, order)


def unpatchify(patches: Tensor, rows: int, p: int, *, order: int = CHANNELS_LAST) -> Tensor:
    """Join patches (N, T, C * p * p) to images (N, C, R * p, S * p) with R = `rows` rows of patches."""
    is_reference = uses_reference("unpatchify", patches=patches)
    check_patches("unpatchify", "patches", patches, p, order, rows=rows)
    if is_reference:
        return reference.unpatchify(patches, rows, p, order)
    return OPERATORS["unpatchify"](dense(patches), rows, p, order)


def _prepare(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, float, torch.dtype]:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    else:
        dtype = torch.promote_types(torch.promote_types(x.dtype, scale.dtype), shift.dtype)
    if shift.dtype != scale.dtype or shift.stride() != scale.stride():
        wider = torch.promote_types(shift.dtype, scale.dtype)
        shift, scale = shift.to(wider).contiguous(), scale.to(wider).contiguous()
    return dense(x), rows_dense(shift), rows_dense(scale), eps, dtype
