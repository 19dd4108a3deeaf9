"""Block with RMSNorm, SwiGLU, rotated and normed heads as one node: the same bits as its single operators."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from dithc import hcops, native
from dithc.hcops import fused, vector

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load().reason}")

N, T, D, E, H = 3, 16, 32, 24, 2
K = D // H


@pytest.fixture(autouse=True)
def _by_the_c_kernels(use_backend: Any) -> None:
    use_backend("c")


def _weights(*, swiglu: bool, normed: bool, dtype: torch.dtype = torch.float32) -> fused.BlockWeights:
    draws = torch.Generator().manual_seed(1)
    shapes = ((6 * D, D), (3 * D, D), (D, D), (E * (1 + swiglu), D), (D, E))
    drawn = [
        Parameter((0.2 * torch.randn(shape, generator=draws)).to(dtype))
        for out, width in shapes
        for shape in ((out, width), (out,))
    ]
    norms = [Parameter(1 + 0.2 * torch.randn(K, generator=draws, dtype=torch.float32)) for _ in range(2)]
    return fused.BlockWeights(*drawn, *(norms if normed else ()))


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(2)
    x, c = torch.randn(N, T, D, generator=draws), torch.randn(N, D, generator=draws)
    return x.to(dtype).requires_grad_(), c.to(dtype).requires_grad_()


def _one_by_one(x: Tensor, c: Tensor, w: fused.BlockWeights, *, rms: bool, swiglu: bool, **tables: Any) -> Tensor:
    modulation = hcops.linear(vector.silu(c), w.modulation, w.modulation_bias)
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, dim=1)
    normed, x = vector.adaln_and_stream(x, shift_a, scale_a, rms=rms)
    qkv = hcops.linear(normed, w.qkv, w.qkv_bias)
    if tables["cos"] is not None or w.query is not None:
        qkv = vector.rotate_heads(qkv, H, **tables, query_weight=w.query, key_weight=w.key)
    x = hcops.linear(hcops.attention(qkv, H), w.projection, w.projection_bias, gate=gate_a, residual=x)
    normed, x = vector.adaln_and_stream(x, shift_m, scale_m, rms=rms)
    if not swiglu:
        return fused.mlp(normed, w.hidden, w.hidden_bias, w.out, w.out_bias, gate=gate_m, residual=x)
    hidden = vector.swiglu(hcops.linear(normed, w.hidden, w.hidden_bias))
    return hcops.linear(hidden, w.out, w.out_bias, gate=gate_m, residual=x)


# Each option alone, and all options together in every type.
KINDS = [(*(place == part for place in range(4)), "fp32") for part in range(4)]
KINDS += [(True, True, True, True, mode) for mode in ("fp32", "autocast", "bf16")]


@pytest.mark.parametrize(("rms", "swiglu", "turned", "normed", "mode"), KINDS)
def test_bits_are_those_of_the_operators_one_by_one(
    rms: bool, swiglu: bool, turned: bool, normed: bool, mode: str
) -> None:
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    angles = torch.arange(float(T * K // 2)).reshape(T, -1)
    kind = {"rms": rms, "swiglu": swiglu}
    kind |= {"cos": angles.cos(), "sin": angles.sin()} if turned else {"cos": None, "sin": None}
    found = []
    for together in (True, False):
        weights, (x, c) = _weights(swiglu=swiglu, normed=normed, dtype=dtype), _inputs(dtype)
        leaves = [x, c, *(weight for weight in weights if weight is not None)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
            assert fused.block_serves(x, c, weights)
            if together:
                out = fused.block(x, c, weights, fused.Kind(H, **kind))
                with torch.no_grad():
                    assert torch.equal(fused.block(x, c, weights, fused.Kind(H, **kind)), out)
            else:
                out = _one_by_one(x, c, weights, **kind)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype is expected.dtype
        assert torch.equal(ours, expected)


def test_norms_of_heads_in_bf16_are_left_to_the_operators() -> None:
    weights, (x, c) = _weights(swiglu=True, normed=True), _inputs()
    rounded = [Parameter(weight.detach().bfloat16()) for weight in weights[-2:]]
    assert fused.block_serves(x, c, weights)
    assert not fused.block_serves(x, c, weights._replace(query=rounded[0], key=rounded[1]))


def test_gradients_of_a_block_of_other_parts_are_those_of_float64() -> None:
    angles = torch.arange(float(T * K // 2)).reshape(T, -1)
    kind = {"rms": True, "swiglu": True, "cos": angles.cos(), "sin": angles.sin()}
    weights, (x, c) = _weights(swiglu=True, normed=True), _inputs()
    out = fused.block(x, c, weights, fused.Kind(H, **kind))
    got = [out, *torch.autograd.grad(out.square().sum(), [x, c, *weights])]
    exact = [value.detach().double().requires_grad_() for value in (x, c, *weights)]
    with hcops.use("reference"):
        truth = _one_by_one(exact[0], exact[1], fused.BlockWeights(*exact[2:]), **kind)
        wanted = [truth, *torch.autograd.grad(truth.square().sum(), exact)]
    for ours, expected in zip(got, wanted, strict=True):
        scale = expected.abs().max()
        torch.testing.assert_close(ours.double() / scale, expected / scale, rtol=0, atol=2e-6)
