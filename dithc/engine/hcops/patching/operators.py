"""Calls of torch as the kernels accept them: arguments, requirements, and reasons to reject a call.

Legend: N batch, T tokens (queries), S keys, D width, H heads, K head width, F output features.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from dithc.engine.hcops.autograd import OPERATORS as FAST_OPERATORS
from dithc.engine.hcops.backend import backend_of
from dithc.engine.hcops.checks import TYPES
from dithc.engine.hcops.dispatch import PLAIN
from dithc.engine.hcops.kernel_registry import FAST
from dithc.engine.hcops.patching import autograd_functions
from dithc.engine.hcops.patching.custom_rmsnorm import PatchedRmsNorm, rms_norm_by_hand


class Call(NamedTuple):
    """Call of an operator with the arguments that decide its result.

    The first of the tensors decides type and device. `rejection` is the reason for rejection by the kernels. `by_hand` is
    the module with several torch calls that this call replaces.
    """

    op: str
    tensors: tuple[Tensor | None, ...]
    settings: tuple[Any, ...] = ()
    rejection: str | None = None
    by_hand: PatchedRmsNorm | None = None


MISMATCH = "shapes that do not go together"
NOT_DENSE = "a memory layout with strides that torch keeps"
_REGISTRY_NAMES = {"layer_norm": "adaln", "rms_norm": "adarms", "attention": "attention"}
"""Operators that only C has, mapped to operators of the table with the same kernels; others use their own names."""


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    fits = weight.dim() == 2 and input.dim() > 1 and input.shape[-1] == weight.shape[1] and input.numel() > 0
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    rejection = _types(input, weight, bias) or _layout(weight) if fits else MISMATCH
    if rejection is None and _layout(input) and _is_matrix(input):
        rejection = NOT_DENSE
    return Call("linear", (input, weight, bias), (), rejection)


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
    if eps is None:  # torch computes bf16 in fp32, and uses the eps of fp32
        eps = torch.finfo(torch.float64 if input.dtype is torch.float64 else torch.float32).eps
    return Call("rms_norm", (input, weight), (eps,), _rows(input, normalized_shape, weight) or _layout(input))


def module_rms_norm(input: Tensor, weight: Tensor, norm: PatchedRmsNorm) -> Call:
    """Describe an RMSNorm by hand. Each of its operations rounds bf16; the kernel rounds once."""
    call = rms_norm(input, tuple(weight.shape), weight, norm.eps)
    mismatch = "types that differ" if input.dtype is not weight.dtype else None
    return call._replace(by_hand=norm, rejection=call.rejection or mismatch)


def gelu(input: Tensor, approximate: str = "none") -> Call:
    rejection = _layout(input) if approximate in ("none", "tanh") else "an unknown form"
    return Call("gelu", (input,), (approximate,), rejection)


def silu(input: Tensor, inplace: bool = False) -> Call:
    return Call("silu", (input,), (), "in place" if inplace else _layout(input))


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
    rejection = _heads(query, key, value, enable_gqa=enable_gqa) or _types(query, key, value)
    if not torch._C._get_flash_sdp_enabled() or any(t.stride(-1) != 1 for t in (query, key, value)):
        rejection = rejection or NOT_DENSE  # torch's flash kernel defines the layout
    if attn_mask is not None:
        rejection = "a mask"
    if dropout_p > 0.0:
        rejection = "dropout"
    if not 0.0 < scale < math.inf:
        rejection = "a scale that is not positive"
    return Call("attention", (query, key, value), (scale, is_causal), rejection)


OPERATORS: dict[Any, Callable[..., Call]] = {
    functional.linear: linear,
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    rms_norm_by_hand: module_rms_norm,
    functional.gelu: gelu,
    functional.silu: silu,
    functional.scaled_dot_product_attention: attention,
}
"""Functions of torch that a mode intercepts."""


def serve(call: Call) -> Tensor:
    """Return the result of the kernels: torch's type, shape and strides, and its values except for rounding."""
    x = call.tensors[0]
    assert x is not None
    if call.op == "linear":
        _, weight, bias = call.tensors
        return FAST_OPERATORS["linear"](
            x.contiguous(), weight, None if bias is None else bias.contiguous(), autocast_type() or x.dtype
        )
    if call.op == "layer_norm":
        return _apply(autograd_functions.dithc_norm, *call.tensors, *call.settings, False, None)
    if call.op == "rms_norm":
        (eps,), norm = call.settings, call.by_hand
        compute = norm.compute if norm is not None else lambda x, weight: torch.rms_norm(x, weight.shape, weight, eps)
        return _apply(autograd_functions.dithc_norm, *call.tensors, None, eps, True, compute)
    if call.op == "attention":
        heads = (t.to(autocast_type() or t.dtype) for t in call.tensors if t is not None)
        return _apply(autograd_functions.dithc_attention, *heads, autograd_functions.Attention(*call.settings))
    if call.op == "silu":
        return _apply(autograd_functions.dithc_activation, x, "silu", functional.silu)
    (form,) = call.settings
    compute = partial(functional.gelu, approximate=form)
    return _apply(autograd_functions.dithc_activation, x, "gelu" if form == "tanh" else "gelu_erf", compute)


def _apply(node: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    out: Tensor = node.apply(*inputs)  # type: ignore[no-untyped-call]
    return out


def autocast_type() -> torch.dtype | None:
    """Return autocast's type for products, or None without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def unsupported_reason(call: Call) -> str | None:
    """Return why the kernels do not serve these tensors in torch's present state; None if they do."""
    if call.rejection is not None:
        return call.rejection
    for tensor in call.tensors:
        if tensor is not None and (not tensor.is_cpu or tensor.dtype not in TYPES):
            return f"tensors of {tensor.dtype} on {tensor.device}"
    backend = backend_of(_REGISTRY_NAMES.get(call.op, call.op))
    if backend not in (("c",) if call.op in _REGISTRY_NAMES or call.settings == ("none",) else FAST):
        return f"back end {backend}, which has no kernel for it"
    if (autocast := autocast_type()) is not None and autocast not in TYPES:
        return f"autocast to {autocast}"
    return None


def torch_only(*arguments: Any) -> str | None:
    """Return why torch must run a call: it traces or transforms the call, or an argument is not a plain tensor.

    Shapes may be symbolic, so no value is inspected.
    """
    is_recorded = (
        torch._C._get_tracing_state() is not None  # torch.jit.trace, torch.onnx.export
        or torch._C._len_torch_dispatch_stack()  # make_fx, FakeTensorMode, counters of operations
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or not torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    )
    if is_recorded:
        return "a tracer, mode or transformation of torch"
    for value in arguments:
        if hasattr(type(value), "__torch_function__") and (
            type(value) not in PLAIN or value.layout is not torch.strided or value.is_nested
        ):
            return f"arguments of class {type(value).__name__} or not strided"
    return None


@cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _is_matrix(x: Tensor) -> bool:
    """Return whether x is a view of a matrix. The gradient of a matrix has its strides; torch copies any other x."""
    try:
        return x.dim() == 2 or x.detach().view(-1, x.shape[-1]).dim() == 2
    except RuntimeError:
        return False


def _layout(*tensors: Tensor) -> str | None:
    """Accept the strides of torch's contiguous results, also of dimensions of size 1, unlike `is_contiguous`."""
    return None if all(tensor.stride() == _strides(tensor.shape) for tensor in tensors) else NOT_DENSE


def _types(x: Tensor, *weights: Tensor | None) -> str | None:
    """Reject mixed types without autocast, as torch does."""
    if autocast_type() is None and any(weight is not None and weight.dtype is not x.dtype for weight in weights):
        return "types that differ"
    return None


def _heads(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> str | None:
    """Check shapes (N, H, T, K), (N, G, S, K) twice; G equals H without `enable_gqa`."""
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape or 0 in (*query.shape, *key.shape):
        return "shapes other than (N, H, T, K)"
    (n, h, _, k), (n_key, groups, _, k_key) = query.shape, key.shape
    if n != n_key or k != k_key or (groups != h and not (enable_gqa and h % groups == 0)):
        return MISMATCH
    return None


def _rows(x: Tensor, normalized_shape: Any, *weights: Tensor | None) -> str | None:
    if len(normalized_shape) != 1 or x.dim() < 1 or x.shape[-1] != normalized_shape[0]:
        return "a norm over more than the last dimension"
    if any(weight is not None and weight.shape != x.shape[-1:] for weight in weights):
        return MISMATCH
    types = {weight.dtype for weight in weights if weight is not None}
    if len(types) > 1 or not types <= {x.dtype, torch.float32}:
        return "types that differ"
    return "no elements" if x.numel() == 0 else None
