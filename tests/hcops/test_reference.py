"""Reference kernels against their formulas, and their gradients against finite differences."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dithc import hcops


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_linear_is_product_with_transposed_weight_plus_bias() -> None:
    x, weight, bias = _double(2, 3, 5), _double(7, 5), _double(7)
    torch.testing.assert_close(hcops.linear(x, weight, bias), x @ weight.T + bias)
    torch.testing.assert_close(hcops.linear(x, weight), x @ weight.T)


def test_linear_gelu_is_the_tanh_form() -> None:
    x, weight, bias = _double(4, 5), _double(3, 5), _double(3)
    h = x @ weight.T + bias
    expected = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    torch.testing.assert_close(hcops.linear(x, weight, bias, gelu=True), expected)


def test_adaln_normalises_over_width_then_modulates() -> None:
    x, shift, scale = _double(2, 3, 8), _double(2, 8), _double(2, 8)
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    expected = (x - mean) / torch.sqrt(variance + 1e-6) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(hcops.vector.adaln(x, shift, scale), expected)


def test_adaln_of_a_constant_row_is_the_shift() -> None:
    shift = torch.randn(1, 8)
    torch.testing.assert_close(
        hcops.vector.adaln(torch.full((1, 2, 8), 3.0), shift, torch.randn(1, 8)), shift.expand(1, 2, 8)
    )


def test_attention_equals_softmax_written_out_head_by_head() -> None:
    qkv, heads, width = _double(2, 5, 24), 2, 4
    q, k, v = qkv.split(8, dim=-1)
    parts = []
    for head in range(heads):
        cut = slice(head * width, (head + 1) * width)
        weights = torch.softmax(q[..., cut] @ k[..., cut].transpose(1, 2) / math.sqrt(width), dim=-1)
        parts.append(weights @ v[..., cut])
    torch.testing.assert_close(hcops.attention(qkv, heads), torch.cat(parts, dim=-1))


def test_attention_of_one_token_returns_its_value() -> None:
    qkv = torch.randn(3, 1, 12)
    torch.testing.assert_close(hcops.attention(qkv, 2), qkv[..., 8:])


def test_gate_residual_and_silu_are_their_formulas() -> None:
    x, gate, y = _double(2, 3, 4), _double(2, 4), _double(2, 3, 4)
    torch.testing.assert_close(hcops.vector.gate_residual(x, gate, y), x + gate[:, None] * y)
    torch.testing.assert_close(hcops.vector.silu(x), x * torch.sigmoid(x))


def _rotate(qkv: Tensor, query_weight: Tensor | None = None, key_weight: Tensor | None = None) -> Tensor:
    """Rotate heads of width 4."""
    angles = torch.arange(2.0 * qkv.shape[1]).reshape(-1, 2)
    weights = {"query_weight": query_weight, "key_weight": key_weight}
    return hcops.vector.rotate_heads(qkv, qkv.shape[2] // 12, cos=angles.cos(), sin=angles.sin(), **weights)


def test_adaln_with_rms_divides_by_the_root_of_the_mean_square() -> None:
    x, shift, scale = _double(2, 3, 8), _double(2, 8), _double(2, 8)
    expected = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(hcops.vector.adaln(x, shift, scale, rms=True), expected)


def test_swiglu_is_the_second_half_gated_by_the_first() -> None:
    x = _double(2, 3, 8)
    torch.testing.assert_close(hcops.vector.swiglu(x), x[..., :4] * torch.sigmoid(x[..., :4]) * x[..., 4:])


def test_rotated_pairs_are_complex_numbers_times_a_phase_and_v_stays() -> None:
    qkv = _double(2, 3, 24)
    out = _rotate(qkv)
    angles = torch.arange(6.0, dtype=torch.float64).reshape(3, 1, 2)
    phase = torch.polar(torch.ones_like(angles), angles)  # (T, 1, K / 2)
    for part in (0, 1):
        heads = qkv[..., 8 * part : 8 * part + 8].reshape(2, 3, 2, 2, 2)
        expected = torch.view_as_real(torch.view_as_complex(heads.contiguous()) * phase).reshape(2, 3, 8)
        torch.testing.assert_close(out[..., 8 * part : 8 * part + 8], expected, rtol=1e-6, atol=1e-6)  # fp32 tables
    assert torch.equal(out[..., 16:], qkv[..., 16:])


def test_scores_of_rotated_heads_depend_on_differences_of_places_alone() -> None:
    q, k = _double(1, 1, 4), _double(1, 1, 4)
    qkv = torch.cat([q, k, k], dim=2).expand(1, 9, 12).contiguous()
    angles = torch.arange(9.0)[:, None] * torch.tensor([1.0, 0.1])
    weights = {"query_weight": None, "key_weight": None}
    out = hcops.vector.rotate_heads(qkv, 1, cos=angles.cos(), sin=angles.sin(), **weights)[0]
    scores = out[:, :4] @ out[:, 4:8].T
    for apart in range(-4, 5):
        along = scores.diagonal(apart)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-5, atol=1e-5)


def test_normed_heads_have_the_length_of_their_weight() -> None:
    qkv, weight = 100 * _double(2, 3, 24), torch.full((4,), 3.0, dtype=torch.float64)
    out = _rotate(qkv, weight, 2 * weight).reshape(2, 3, 3, 2, 4).square().mean(-1).sqrt()
    torch.testing.assert_close(out[:, :, 0], torch.full((2, 3, 2), 3.0, dtype=torch.float64), rtol=1e-5, atol=0)
    torch.testing.assert_close(out[:, :, 1], torch.full((2, 3, 2), 6.0, dtype=torch.float64), rtol=1e-5, atol=0)


CASES = {
    "linear": lambda: (hcops.linear, (_double(2, 3, 4), _double(5, 4), _double(5))),
    "linear_gelu": lambda: (lambda *a: hcops.linear(*a, gelu=True), (_double(2, 3, 4), _double(5, 4), _double(5))),
    "linear_gate_residual": lambda: (
        lambda x, w, b, gate, residual: hcops.linear(x, w, b, gate=gate, residual=residual),
        (_double(2, 3, 4), _double(5, 4), _double(5), _double(2, 5), _double(2, 3, 5)),
    ),
    "mlp": lambda: (
        lambda x, w1, b1, w2, b2, gate, y: hcops.fused.mlp(x, w1, b1, w2, b2, gate=gate, residual=y),
        (_double(2, 3, 4), _double(6, 4), _double(6), _double(5, 6), _double(5), _double(2, 5), _double(2, 3, 5)),
    ),
    "adaln": lambda: (hcops.vector.adaln, (_double(2, 3, 4), _double(2, 4), _double(2, 4))),
    "adarms": lambda: (
        lambda *a: hcops.vector.adaln(*a, rms=True),
        (_double(2, 3, 4), _double(2, 4), _double(2, 4)),
    ),
    "rotate_heads": lambda: (_rotate, (_double(2, 3, 24), _double(4), _double(4))),
    "swiglu": lambda: (hcops.vector.swiglu, (_double(2, 3, 8),)),
    "gate_residual": lambda: (hcops.vector.gate_residual, (_double(2, 3, 4), _double(2, 4), _double(2, 3, 4))),
    "attention": lambda: (lambda qkv: hcops.attention(qkv, 2), (_double(2, 3, 12),)),
    "silu": lambda: (hcops.vector.silu, (_double(2, 3),)),
    "gelu": lambda: (hcops.vector.gelu, (_double(2, 3),)),
    "softmax": lambda: (hcops.vector.softmax, (_double(2, 3),)),
    "mse": lambda: (hcops.vector.mse, (_double(2, 3), _double(2, 3))),
    "patchify": lambda: (lambda x: hcops.vector.patchify(x, 2), (_double(1, 2, 4, 6),)),
    "unpatchify": lambda: (lambda x: hcops.vector.unpatchify(x, 2, 2), (_double(1, 6, 8),)),
    "exp": lambda: (hcops.vector.exp, (_double(2, 3),)),
    "tanh": lambda: (hcops.vector.tanh, (_double(2, 3),)),
    "scale_add": lambda: (
        lambda x, y: hcops.vector.scale_add(x, y, alpha=0.5, beta=-2.0),
        (_double(2, 3), _double(2, 3)),
    ),
}


@pytest.fixture(autouse=True)
def _reference() -> Iterator[None]:
    with hcops.use("reference"):
        yield


def test_every_operator_with_a_gradient_has_a_case() -> None:
    assert set(CASES) == {row["op"] for row in hcops.describe()} - {"adamw", "sum_of_squares"}


@pytest.mark.parametrize("order", [0, 1])
def test_unpatchify_undoes_patchify(order: int) -> None:
    image = torch.randn(2, 3, 4, 6)
    patches = hcops.vector.patchify(image, 2, order=order)
    assert patches.shape == (2, 6, 12)
    assert torch.equal(hcops.vector.unpatchify(patches, 2, 2, order=order), image)


def test_patchify_is_what_a_convolution_of_whole_strides_reads() -> None:
    image, weight = torch.randn(2, 3, 4, 6), torch.randn(5, 3, 2, 2)
    product = hcops.vector.patchify(image, 2) @ weight.flatten(1).T
    expected = torch.nn.functional.conv2d(image, weight, stride=2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(product, expected)


@pytest.mark.parametrize("op", CASES)
def test_gradient_equals_finite_differences(op: str) -> None:
    function, inputs = CASES[op]()
    assert torch.autograd.gradcheck(function, inputs)


def test_gate_residual_keeps_an_fp32_stream_under_bf16_branches() -> None:
    x = torch.randn(1, 2, 4)
    out = hcops.vector.gate_residual(x, torch.randn(1, 4).bfloat16(), torch.randn(1, 2, 4).bfloat16())
    assert out.dtype == torch.float32
