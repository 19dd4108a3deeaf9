"""Attention of the C kernels against float64, for every instruction set of this CPU, within bounds computed from the
arithmetic.

Legend: N images, T tokens, H heads, K head width. q, k, v, dout are (N, H, T, K), scores (N, H, T, T).
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dithc.engine import native
from tests.engine.native.scripts import run_script
from tests.kernels.isas import ALL, newest_and_alternates, require_isa, sampled_if_supported

NUMBERS = {torch.float32: 0, torch.bfloat16: 1}  # hc_dtype
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
# Relative error of a probability's exponential, and of its rounding for the product with V; see hc_exp2 and
# hc_exp2_coarse.
EXPONENTIAL = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-13 + 2.0**-8}
LENGTHS = [1, 2, 7, 63, 64, 65, 250, 256, 257, 1000]
WIDTHS = [1, 8, 63, 64, 72, 80, 128]
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=newest_and_alternates(ALL))
def isa(request):
    return require_isa(request.param)


def random_problem(n, t, h, k, kind, *, size=1.0):
    """Return qkv (N, T, 3HK) and dout (N, T, HK); scores grow with `size`."""
    generator = torch.Generator().manual_seed(1000 * t + 10 * k + h)
    qkv = torch.randn(n, t, 3, h, k, generator=generator)
    qkv[:, :, :2] *= math.sqrt(size)
    return qkv.reshape(n, t, 3 * h * k).to(kind), torch.randn(n, t, h * k, generator=generator).to(kind)


def forward(qkv, num_heads, *, isa, num_threads=2):
    n, t, width = qkv.shape
    k = width // (3 * num_heads)
    kind = NUMBERS[qkv.dtype]
    out = torch.full((n, t, num_heads * k), math.nan, dtype=qkv.dtype)
    lse = torch.full((n, num_heads, t), math.nan)
    native.library().hc_attention_forward(
        native.context(isa=isa, num_threads=num_threads),
        *(n, t, num_heads, k, qkv.data_ptr(), kind, out.data_ptr(), kind, lse.data_ptr(), kind),
    )
    return out, lse


def backward(dout, qkv, out, lse, num_heads, *, isa, num_threads=2):
    n, t, width = qkv.shape
    k = width // (3 * num_heads)
    kind = NUMBERS[qkv.dtype]
    dqkv = torch.full_like(qkv, math.nan)
    native.library().hc_attention_backward(
        native.context(isa=isa, num_threads=num_threads),
        *(n, t, num_heads, k, dout.data_ptr(), kind, qkv.data_ptr(), kind, out.data_ptr(), kind, lse.data_ptr()),
        *(dqkv.data_ptr(), kind, kind),
    )
    return dqkv


def heads_of(x, num_heads, parts=1):
    """Split (N, T, parts * H * K) into `parts` tensors (N, H, T, K) in float64."""
    n, t, width = x.shape
    cut = x.double().reshape(n, t, parts, num_heads, width // (parts * num_heads))
    return cut.permute(2, 0, 3, 1, 4).unbind(0)


def growth(terms):
    """Return units of roundoff in a sum: 6 sqrt(terms), except in one of 10^6 sums (Higham & Mary 2019), plus a few
    operations.
    """
    return min(terms, 6 * math.sqrt(terms)) + 4


def exactly(qkv, dout, num_heads) -> dict[str, tuple[Tensor, Tensor]]:
    """Return results in float64 with elementwise error bounds of a kernel, to first order in the roundoff, by name.

    u is fp32's roundoff, e the error of storing a probability (and its exponential). A score is a sum of K terms:
    |error| <= growth(K) u sum|q||k| / sqrt(K). Its rounding in the exponent adds u (|score| + |max|). A probability has
    the same relative error twice: from its own exponential and from the sum.
    """
    q, k, v = heads_of(qkv, num_heads, 3)
    (g,) = heads_of(dout, num_heads)
    t, width = q.shape[2:]
    u, e, stored = ROUNDOFF[torch.float32], EXPONENTIAL[qkv.dtype], ROUNDOFF[qkv.dtype]
    scale = 1 / math.sqrt(width)
    scores = q @ k.mT * scale
    lse = torch.logsumexp(scores, -1, keepdim=True)
    p = torch.exp(scores - lse)
    out = p @ v
    # Errors of scores and of probabilities. The largest error of a row also bounds its sum.
    off = growth(width) * u * scale * (q.abs() @ k.abs().mT) + 4 * u * (
        scores.abs() + scores.abs().amax(-1, keepdim=True)
    )
    off = off + off.amax(-1, keepdim=True)
    lse_bound = off.amax(-1) + 2.0**-22 + 4 * u * lse[..., 0].abs() + growth(t) * u
    relative = off + 2 * e + 4 * growth(t) * u
    out_bound = (p * relative) @ v.abs() + stored * out.abs()
    # Gradients.
    dp = g @ v.mT
    delta = (g * out).sum(-1, keepdim=True)
    ds = p * (dp - delta)
    dp_off = growth(width) * u * (g.abs() @ v.abs().mT)
    delta_off = (g.abs() * (out_bound + growth(width) * u * out.abs())).sum(-1, keepdim=True)
    relative = relative + lse_bound[..., None]
    ds_off = relative * (p * (dp - delta).abs() + ds.abs()) + p * (dp_off + delta_off) + growth(t) * u * ds.abs()
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ g
    return {
        "out": (out, out_bound),
        "lse": (lse[..., 0], lse_bound),
        "dq": (dq, scale * ds_off @ k.abs() + stored * dq.abs()),
        "dk": (dk, scale * ds_off.mT @ q.abs() + stored * dk.abs()),
        "dv": (dv, (p * relative).mT @ g.abs() + stored * dv.abs()),
    }


def assert_within(got, expected, bound, name):
    """Allow half of the bound again for second-order terms, and fp32's smallest normal number for flushed denormals."""
    excess = (got.double() - expected).abs() - 1.5 * bound - 2.0**-126
    worst = excess.max().item()
    assert worst <= 0, f"{name}: {worst:.3g} beyond the bound"  # nan fails this check too


def assert_right(qkv, dout, num_heads, isa):
    exact = exactly(qkv, dout, num_heads)
    out, lse = forward(qkv, num_heads, isa=isa)
    dqkv = backward(dout, qkv, out, lse, num_heads, isa=isa)
    results = (*heads_of(out, num_heads), lse, *heads_of(dqkv, num_heads, 3))
    for got, (name, expected) in zip(results, exact.items(), strict=True):
        assert_within(got, *expected, name)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("t", LENGTHS)
def test_attention_equals_float64_for_any_length(t, kind, isa):
    if isa == "ref" and t > 300:
        pytest.skip("plain loops take seconds here, and chunks are cut by code common to all")
    for h in (1, 2, 3):
        assert_right(*random_problem(2 if t < 300 else 1, t, h, 64 if h == 1 else 24, kind), h, isa)
    for k in WIDTHS if t in (7, 65) else ():
        assert_right(*random_problem(1, t, 2, k, kind), 2, isa)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", [0.0, 1e-3, 30.0])
def test_attention_equals_float64_for_small_and_large_scores(size, kind, isa):
    """Scores 30 times the usual size leave one probability near 1 in most rows; scores of 0 make all equal."""
    assert_right(*random_problem(1, 130, 2, 64, kind, size=size), 2, isa)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("isa", sampled_if_supported(name for name in ALL if name != "ref"), indirect=True)
def test_attention_equals_float64_for_a_long_sequence(kind, isa):
    """Excludes plain loops, which take a minute here."""
    assert_right(*random_problem(1, 4096, 1, 64, kind), 1, isa)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("n", "t", "h"), [(2, 65, 3), (1, 1100, 1), (1, 600, 5)])
def test_attention_is_bitwise_repeatable_for_any_threads(n, t, h, kind, isa):
    if isa == "ref" and t > 300:
        pytest.skip("plain loops take seconds here, and threads share work by code common to all")
    qkv, dout = random_problem(n, t, h, 40, kind)
    results = []
    for num_threads in (1, 2, 3, 1, 3):
        out, lse = forward(qkv, h, isa=isa, num_threads=num_threads)
        results.append((out, lse, backward(dout, qkv, out, lse, h, isa=isa, num_threads=num_threads)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_nan_propagation_matches_pytorch(part, kind, isa):
    qkv, dout = random_problem(1, 70, 3, 24, kind)
    qkv.view(1, 70, 3, 3, 24)[0, 5, part, 1, 3] = math.nan
    out, lse = forward(qkv, 3, isa=isa)
    dqkv = backward(dout, qkv, out, lse, 3, isa=isa)
    reference = qkv.float().requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in reference.view(1, 70, 3, 3, 24).unbind(2))
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 70, 72)
    mixed.backward(dout.float())
    assert torch.equal(out.isnan(), mixed.isnan())
    assert torch.equal(dqkv.isnan(), reference.grad.isnan())


@pytest.mark.parametrize("kind", TYPES)
def test_overflowing_scores_yield_zeros_or_nan(kind, isa):
    """A row of -inf has no keys and gives zeros; a row with +inf gives nan."""
    qkv = torch.ones(1, 40, 3, 1, 8)
    qkv[0, 3, 0], qkv[0, :, 1] = 1e30, -1e30
    out, lse = forward(qkv.reshape(1, 40, 24).to(kind), 1, isa=isa)
    assert out[0, 3].eq(0).all()
    assert lse[0, 0, 3] == 0
    assert out[0, 4].eq(1).all()
    qkv[0, 0, 1] = 1e30
    out, _ = forward(qkv.reshape(1, 40, 24).to(kind), 1, isa=isa)
    assert out[0, 3].isnan().all()
    assert out[0, 4].eq(1).all()


ODD = {"huge": 1e12, "tiny": 1e-20, "inf": math.inf, "nan": math.nan}


@pytest.fixture
def amx():
    return require_isa("amxfp32")


@pytest.mark.parametrize("part", [0, 1, 2, 3], ids=["q", "k", "v", "dout"])
@pytest.mark.parametrize("value", list(ODD.values()), ids=list(ODD))
@pytest.mark.parametrize("t", [70, 600])
def test_out_of_range_head_uses_vector_unit_without_changing_other_heads(t, value, part, amx):
    """Head 1 of 3 is out of range and equals AVX-512's result bit for bit. Heads 0 and 2 equal the results without it.

    600 tokens are two segments on two threads, each with a part of the head.
    """
    qkv, dout = random_problem(1, t, 3, 40, torch.float32)
    usual = all_results(qkv, dout, amx)
    if part == 3:
        heads, index = dout.view(1, t, 3, 40)[:, :, 1], (0, t - 1, 3)
    else:
        heads, index = qkv.view(1, t, 3, 3, 40)[:, :, part, 1], (0, t - 1, 3)
    if value == ODD["tiny"]:
        heads *= value
    else:
        heads[index] = value
    # dout does not affect the forward pass, which then uses parts.
    odd, vector = (
        all_results(qkv, dout, amx),
        all_results(qkv, dout, "avx512", forward_isa=amx if part == 3 else "avx512"),
    )
    for name, got, expected, plain in zip(("out", "dq", "dk", "dv"), odd, vector, usual, strict=True):
        assert torch.equal(got[:, 0], plain[:, 0]), name
        assert torch.equal(got[:, 2], plain[:, 2]), name
        torch.testing.assert_close(got[:, 1], expected[:, 1], rtol=0, atol=0, equal_nan=True)


def all_results(qkv, dout, isa, *, forward_isa=None):
    out, lse = forward(qkv, 3, isa=forward_isa or isa)
    return (*heads_of(out, 3), *heads_of(backward(dout, qkv, out, lse, 3, isa=isa), 3, 3))


MEMORY = """
import torch
from dithc.engine import native

def peak_mib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

def run(h):
    t, k = 4096, 8
    qkv, dout, dqkv = torch.rand(1, t, 3 * h * k), torch.rand(1, t, h * k), torch.zeros(1, t, 3 * h * k)
    lse = torch.full((1, h, t), 20.0)
    before = peak_mib()
    native.library().hc_attention_backward(
        native.context(num_threads=8), 1, t, h, k, dout.data_ptr(), 0, qkv.data_ptr(), 0, dout.data_ptr(), 0,
        lse.data_ptr(), dqkv.data_ptr(), 0, 0)
    return peak_mib() - before

run(4)
print(run(31))
"""


@pytest.mark.slow
def test_scratch_memory_grows_with_threads_and_not_with_heads():
    """Sums of dQ per segment at 8 threads, T = 4,096 and K = 8 would take 31 MiB for 31 heads, and 4 MiB for 4 heads."""
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    assert float(run_script(MEMORY).stdout) < 8


def test_invalid_arguments_are_rejected_without_writing_output(isa):
    qkv, _ = random_problem(1, 4, 1, 8, torch.float32)
    out, lse = torch.full((1, 4, 8), 7.0), torch.full((1, 1, 4), 7.0)
    context, call = native.context(isa=isa, num_threads=1), native.library().hc_attention_forward
    data, result, sums = qkv.data_ptr(), out.data_ptr(), lse.data_ptr()
    for arguments in (
        (-1, 4, 1, 8, data, 0, result, 0, sums, 0),
        (1, 4, 1, 0, data, 0, result, 0, sums, 0),
        (1, 4, 1, 8, None, 0, result, 0, sums, 0),
        (1, 4, 1, 8, data, 2, result, 0, sums, 0),
        (1, 4, 1, 8, data, 0, result, 0, sums, 2),
    ):
        with pytest.raises(ValueError, match="hc_attention_forward"):
            call(context, *arguments)
    call(context, 0, 4, 1, 8, None, 0, None, 0, None, 0)  # an empty call is valid
    assert out.eq(7).all()
    assert lse.eq(7).all()
