"""Calls of torch as our kernels take them: for each function its arguments, what it needs, and what is refused, with the reason.

Legend: N batch, T tokens (queries), S keys, D width, H heads, K head width, F output features.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from dithc.hcops.active import backend_of
from dithc.hcops.autograd import custom
from dithc.hcops.checks import TYPES
from dithc.hcops.patching import nodes
from dithc.hcops.patching.by_hand import ByHand, rms_norm_by_hand
from dithc.hcops.route import PLAIN, dense
from dithc.hcops.table import FAST


class Call(NamedTuple):
    """A call of an operator with the arguments that decide its result.

    Attributes:
        op: its name in the table of what was served.
        tensors: of the call, None where an optional one is missing; the first decides type and place.
        settings: numbers and words.
        refusal: why our kernels do not take it; None where they do.
        by_hand: it stands for several calls of torch, which a module makes for the same result.
    """

    op: str
    tensors: tuple[Tensor | None, ...]
    settings: tuple[Any, ...] = ()
    refusal: str | None = None
    by_hand: bool = False


NO_FIT = "shapes that do not go together"
_OF_TABLE = {"layer_norm": "adaln", "rms_norm": "adarms", "attention": "attention"}
"""Operators that only C has, and those of the table that share their kernels; others go by their own names."""


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    fits = weight.dim() == 2 and input.dim() > 0 and input.shape[-1] == weight.shape[1] and input.numel() > 0
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    return Call("linear", (input, weight, bias), (), _types(input, weight, bias) if fits else NO_FIT)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Call:
    return Call("layer_norm", (input, weight, bias), (eps,), _rows(input, normalized_shape, weight, bias))


def rms_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Call:
    if eps is None:  # torch computes bf16 in fp32, and takes that type's
        eps = torch.finfo(torch.float64 if input.dtype is torch.float64 else torch.float32).eps
    return Call("rms_norm", (input, weight), (eps,), _rows(input, normalized_shape, weight))


def of_module(input: Tensor, weight: Tensor, norm: ByHand) -> Call:
    """Its own rounding of a product of bf16 is not ours: each of its operations rounds, ours once."""
    call = rms_norm(input, tuple(weight.shape), weight, norm.eps)
    differ = "types that differ" if input.dtype is not weight.dtype else None
    return call._replace(by_hand=True, refusal=call.refusal or differ)


def gelu(input: Tensor, approximate: str = "none") -> Call:
    return Call("gelu", (input,), (approximate,), None if approximate in ("none", "tanh") else "an unknown form")


def silu(input: Tensor, inplace: bool = False) -> Call:
    return Call("silu", (input,), (), "in place" if inplace else None)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    scale = scale if scale is not None else query.shape[-1] ** -0.5
    refusal = _heads(query, key, value, enable_gqa=enable_gqa) or _types(query, key, value)
    if attn_mask is not None:
        refusal = "a mask"
    if dropout_p > 0.0:
        refusal = "dropout"
    if not 0.0 < scale < math.inf:
        refusal = "a scale that is not positive"
    return Call("attention", (query, key, value), (scale, is_causal), refusal)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    """Taken where torch would bring the weight, and its gradient back, to the layout of an input whose channels are last."""
    refusal = None
    if input.dim() != 4 or input.is_contiguous() or not input.is_contiguous(memory_format=torch.channels_last):
        refusal = "torch's, as it is: channels are not last in its input"
    elif weight.dim() != 4 or not weight.is_contiguous():
        refusal = "torch's, as it is: channels are last in its weight too"
    return Call("conv2d", (input, weight, bias), (stride, padding, dilation, groups), refusal)


OPERATORS: dict[Any, Callable[..., Call]] = {
    functional.linear: linear,
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    rms_norm_by_hand: of_module,
    functional.gelu: gelu,
    functional.silu: silu,
    functional.scaled_dot_product_attention: attention,
    torch.conv2d: conv2d,
}
"""By the function of torch that a mode sees."""


def serve(call: Call) -> Tensor:
    """The call by our kernels, with torch's types: what it returns is what torch would, but for rounding."""
    x = call.tensors[0]
    assert x is not None
    if call.op == "linear":
        _, weight, bias = call.tensors
        return custom.LINEAR(dense(x), dense(weight), None if bias is None else dense(bias), autocast_type() or x.dtype)  # type: ignore[arg-type]
    if call.op in ("layer_norm", "rms_norm"):
        bias = call.tensors[2] if call.op == "layer_norm" else None
        return nodes.norm(x, call.tensors[1], bias, *call.settings, rms=call.op == "rms_norm")
    if call.op == "attention":
        scale, causal = call.settings
        query, key, value = (t.to(autocast_type() or t.dtype) for t in call.tensors if t is not None)
        return nodes.attention(query, key, value, scale, causal=causal)
    if call.op == "conv2d":
        return torch.conv2d(x.contiguous(), *call.tensors[1:], *call.settings)  # type: ignore[call-overload, no-any-return]
    if call.op == "gelu" and call.settings == ("none",):
        return nodes.gelu_erf(x)
    return (custom.GELU if call.op == "gelu" else custom.SILU)(dense(x))


def autocast_type() -> torch.dtype | None:
    """The type that autocast gives to products; None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def obstacle(call: Call) -> str | None:
    """Why our kernels do not take these tensors, or the state torch is in; None where they do."""
    if call.refusal is not None:
        return call.refusal
    for tensor in call.tensors:
        if tensor is None:
            continue
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            return f"tensors of class {type(tensor).__name__}, layout {tensor.layout}"
        if not tensor.is_cpu or tensor.dtype not in TYPES:
            return f"tensors of {tensor.dtype} on {tensor.device}"
    backend = "" if call.op == "conv2d" else backend_of(_OF_TABLE.get(call.op, call.op))
    if backend and backend not in (("c",) if call.op in _OF_TABLE or call.settings == ("none",) else FAST):
        return f"back end {backend}, which has no kernel for it"
    if is_transformed():
        return "a mode or transformation of torch"
    if (autocast := autocast_type()) is not None and autocast not in TYPES:
        return f"autocast to {autocast}"
    return None


def is_transformed() -> bool:
    """Whether a mode that sees every operator, torch.func or forward-mode differentiation is on."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _types(x: Tensor, *weights: Tensor | None) -> str | None:
    """Without autocast torch wants one type."""
    if autocast_type() is None and any(weight is not None and weight.dtype is not x.dtype for weight in weights):
        return "types that differ"
    return None


def _heads(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> str | None:
    """Shapes (N, H, T, K), (N, G, S, K) twice; G is H without `enable_gqa`."""
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape or 0 in (*query.shape, *key.shape):
        return "shapes other than (N, H, T, K)"
    (n, h, _, k), (n_key, groups, _, k_key) = query.shape, key.shape
    if n != n_key or k != k_key or (groups != h and not (enable_gqa and h % groups == 0)):
        return NO_FIT
    return None


def _rows(x: Tensor, normalized_shape: Any, *weights: Tensor | None) -> str | None:
    if len(normalized_shape) != 1 or x.dim() < 1 or x.shape[-1] != normalized_shape[0]:
        return "a norm over more than the last dimension"
    if any(weight is not None and weight.shape != x.shape[-1:] for weight in weights):
        return NO_FIT
    if len({weight.dtype for weight in weights if weight is not None}) > 1:
        return "types that differ"
    return "no elements" if x.numel() == 0 else None
