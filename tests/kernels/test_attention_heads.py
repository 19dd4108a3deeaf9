"""Attention of separate q, k and v in C, against float64: strides, lengths that differ, shared heads, causal, any
scale.

Legend: N images, H heads, G heads of keys, T queries, S keys, K head width.
"""

import itertools
import math

import pytest
import torch

from dithc.engine import native
from dithc.engine.hcops.patching import autograd_functions
from dithc.engine.hcops.patching.autograd_functions import Attention
from tests.kernels.isas import ALL, newest_and_alternates, require_isa

# (N, H, G, T, S, K): all 1; below a panel; beyond chunks of 64 and 256 and segments of 512, with remainders.
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 9, 8),
    (2, 4, 2, 67, 67, 32),
    (1, 6, 1, 33, 130, 40),
    (1, 2, 2, 200, 65, 64),
    (1, 2, 1, 600, 530, 20),
]
TOLERANCE = {
    torch.float32: 2e-5,
    torch.bfloat16: 4e-2,
}  # of the largest number of a result; sums of 600 terms, bf16's 2^-8


@pytest.fixture(params=newest_and_alternates(ALL))
def isa(request, monkeypatch):
    context = native.context(isa=require_isa(request.param), num_threads=2)
    monkeypatch.setattr(native, "context", lambda: context)
    return request.param


def exact(query, key, value, dout, kind):
    """Return out, lse and the gradients in float64."""
    query, key, value = (x.detach().double().requires_grad_() for x in (query, key, value))
    share = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(share, 1).mT * kind.scale
    if kind.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    out = scores.softmax(-1) @ value.repeat_interleave(share, 1)
    gradients = torch.autograd.grad(out, (query, key, value), dout.double())
    return out.detach(), scores.logsumexp(-1).detach(), gradients


def heads(n, h, t, k, dtype, layout, generator):
    """Return (N, H, T, K) with contiguous strides, strides of (N, T, H, K), or gaps between rows."""
    if layout == "heads first":
        return torch.randn(n, h, t, k, generator=generator).to(dtype)
    width = k if layout == "tokens first" else k + 3
    return torch.randn(n, t, h, width, generator=generator).to(dtype).transpose(1, 2)[..., :k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strided_heads_equal_float64(isa, shape, causal, dtype):
    n, h, g, t, s, k = shape
    layouts = itertools.cycle(["heads first", "tokens first", "gaps"])
    generator = torch.Generator().manual_seed(sum(shape))
    query = heads(n, h, t, k, dtype, next(layouts), generator)
    key, value = (heads(n, g, s, k, dtype, next(layouts), generator) for _ in range(2))
    dout = heads(n, h, t, k, dtype, "heads first", generator)
    kind = Attention(0.7 / math.sqrt(k), causal)
    out, lse = autograd_functions.attention_forward(query, key, value, kind)
    found = (out, lse, *autograd_functions.attention_backward(dout, query, key, value, out, lse, kind))
    exact_out, exact_lse, gradients = exact(query, key, value, dout, kind)
    for name, result, expected in zip(
        ("out", "lse", "dq", "dk", "dv"), found, (exact_out, exact_lse, *gradients), strict=True
    ):
        largest = expected.abs().max() + 1e-3 * (1 + math.sqrt(k))
        assert (result.double() - expected).abs().max() <= TOLERANCE[dtype] * largest, name


def test_packed_attention_equals_separate_attention_bitwise(isa):
    n, t, h, k = 2, 77, 3, 24
    qkv = torch.randn(n, t, 3, h, k)
    packed, lse = torch.empty(n, t, h, k), torch.empty(n, h, t)
    native.library().hc_attention_forward(
        *(native.context(), n, t, h, k, qkv.data_ptr(), 0, packed.data_ptr(), 0, lse.data_ptr(), 0)
    )
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    separate, separate_lse = autograd_functions.attention_forward(query, key, value, Attention(k**-0.5, causal=False))
    assert torch.equal(separate.transpose(1, 2), packed)
    assert torch.equal(separate_lse, lse)


def test_invalid_head_counts_scale_and_empty_keys_are_rejected():
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    three, two = torch.randn(1, 3, 4, 8), torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="hc_attention_heads_forward"):
        autograd_functions.attention_forward(three, two, two, Attention(1.0, causal=False))  # 2 does not divide 3
    with pytest.raises(ValueError, match="hc_attention_heads_forward"):
        autograd_functions.attention_forward(two, two, two, Attention(-1.0, causal=False))
    with pytest.raises(ValueError, match="hc_attention_heads_forward"):
        autograd_functions.attention_forward(two, two[:, :, :0], two[:, :, :0], Attention(1.0, causal=False))
