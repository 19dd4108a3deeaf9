"""Raw kernels of the C library that a DiT does not use: weighted norms, and attention of heads at any strides, without
autograd.

Legend: R rows, D width, N batch, H heads, G key heads, T tokens (queries), S keys, K head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dithc import native
from dithc.hcops.c import library
from dithc.hcops.checks import TYPES, array, fp32, shape_of
from dithc.native import signatures


def norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, rms: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return out (R, D) in x's type, mean (R), None with `rms`, and rstd (R) for x (R, D), weight and bias (D) of one
    type.
    """
    rows, width = x.shape
    for name, tensor in (("weight", weight), ("bias", bias)):
        shape_of("norm", name, tensor, (width,))
    out, rstd = library.pool().empty(x.shape, x.dtype), torch.empty(rows, dtype=torch.float32, device="cpu")
    mean = None if rms else torch.empty_like(rstd)
    weight_address, weight_type = array("norm", "weight", weight)
    library.functions().hc_norm_forward(
        *(native.context(), rows, width, eps, *array("norm", "x", x), array("norm", "bias", bias)[0], weight_address),
        *(weight_type, out.data_ptr(), TYPES[out.dtype], None if mean is None else mean.data_ptr(), rstd.data_ptr()),
    )
    return out, mean, rstd


def norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor | None, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `norm_forward`: dx (R, D) in x's type, and dweight and dbias (D) in weight's type."""
    op, (rows, width) = "norm_backward", x.shape
    shape_of(op, "dy", dy, (rows, width))
    shape_of(op, "rstd", rstd, (rows,))
    dx, dweight, dbias = library.pool().empty(x.shape, x.dtype), torch.empty_like(weight), torch.empty_like(weight)
    library.functions().hc_norm_backward(
        *(native.context(), rows, width, *array(op, "dy", dy), *array(op, "x", x), *array(op, "weight", weight)),
        *(None if mean is None else fp32(op, "mean", mean), fp32(op, "rstd", rstd), dx.data_ptr(), TYPES[dx.dtype]),
        *(dbias.data_ptr(), dweight.data_ptr(), TYPES[weight.dtype]),
    )
    return dx, dweight, dbias


class Attention(NamedTuple):
    """Settings of attention: factor of the scores, and whether query i attends only to keys 0 to i."""

    scale: float
    causal: bool


def attention_forward(query: Tensor, key: Tensor, value: Tensor, kind: Attention) -> tuple[Tensor, Tensor]:
    """Compute attention of query (N, H, T, K) over key and value (N, G, S, K), each with stride 1 in its last
    dimension.

    Returns out in query's type with the strides of `torch.empty_like(query)`, as torch's flash kernel, and the
    logarithms of the sums of exponentials (N, H, T). Products use query's type.
    """
    strides = torch.empty_like(query, device="meta").stride()
    buffer = library.pool().empty((query.numel(),), query.dtype)
    out = torch.empty(
        0, dtype=query.dtype, device="cpu"
    )  # `set_` makes it own the buffer; a view rejects in-place changes
    out.set_(buffer.untyped_storage(), buffer.storage_offset(), query.shape, strides)
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device="cpu")
    library.functions().hc_attention_heads_forward(native.context(), _arguments(query, key, value, out, lse, kind))
    return out, lse


def attention_backward(
    dout: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, kind: Attention
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `attention_forward` in query's type, each in the memory order (N, tokens, heads, K)."""
    n, h, t, k = query.shape
    groups, keys = key.shape[1:3]
    shape_of("attention_backward", "dout", dout, tuple(out.shape))
    if dout.stride() != out.stride():  # the kernel reads both with the same strides
        dout = torch.empty_like(out).copy_(dout)
    dquery, dkey, dvalue = (
        library.pool().empty((n, rows, h, k), query.dtype).transpose(1, 2) for rows in (t, keys, keys)
    )
    arguments = _arguments(query, key, value, out, lse, kind)
    arguments.dout = _heads(dout)
    arguments.out_dquery, arguments.out_dkey, arguments.out_dvalue = _heads(dquery), _heads(dkey), _heads(dvalue)
    library.functions().hc_attention_heads_backward(native.context(), arguments)
    if groups == h:
        return dquery, dkey, dvalue
    shared = (n, keys, groups, h // groups, k)
    dkey, dvalue = (d.transpose(1, 2).view(shared).sum(3).transpose(1, 2) for d in (dkey, dvalue))
    return dquery, dkey, dvalue


def _arguments(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, kind: Attention
) -> signatures.AttentionArguments:
    n, h, t, k = query.shape
    return signatures.AttentionArguments(
        *(n, t, key.shape[2], h, key.shape[1], k, kind.scale, kind.causal, TYPES[query.dtype]),
        *(_heads(query), _heads(key), _heads(value), _heads(out)),
        lse=lse.data_ptr(),
    )


def _heads(tensor: Tensor) -> signatures.Heads:
    image, head, token, _ = tensor.stride()
    return signatures.Heads(tensor.data_ptr(), TYPES[tensor.dtype], image, head, token)
