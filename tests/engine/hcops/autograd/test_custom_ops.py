"""Fast operators against float64, forward and gradients, on every back end and instruction set, and as operators of
torch.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dithc.engine import hcops, native
from dithc.engine.hcops import tuning, vector
from dithc.engine.hcops.autograd import OPERATORS
from dithc.engine.hcops.blocks import fused
from dithc.engine.hcops.kernel_registry import obstacle
from tests.kernels.isas import ALL, is_supported

FP32_ROUNDOFF, BF16_ROUNDOFF = 2.0**-24, 2.0**-9
SERVERS = [f"c:{level}" for level in ALL if is_supported(level)] + ["numba"]


@pytest.fixture
def server(request, monkeypatch) -> Iterator[str]:
    """Back end, and for C the instruction set after the colon."""
    backend, _, level = request.param.partition(":")
    if reason := obstacle(backend):
        pytest.skip(f"back end {backend}: {reason}")
    monkeypatch.setenv("HCOPS_ISA", level)
    native.isa_choice.cache_clear()
    with hcops.use(backend):
        yield backend
    native.isa_choice.cache_clear()


@pytest.fixture
def fast(use_backend) -> None:
    """Select the best back end of this machine other than the reference."""
    use_backend("c" if obstacle("c") is None else "numba")


@dataclass(frozen=True)
class Case:
    """Call of a public operator. Names of inputs decide which inputs stay fp32 under autocast.

    Attributes:
        call: Function of the tensors, in the order of `shapes`.
        shapes: Several sets of (name, shape).
        length: Function that returns the length of the longest sum for given shapes.
    """

    call: Callable[..., Tensor]
    shapes: tuple[dict[str, tuple[int, ...]], ...]
    length: Callable[[dict[str, tuple[int, ...]]], int]

    @property
    def small(self) -> int:
        """Index of small shapes, which differ in every dimension if there are several."""
        return int(len(self.shapes) > 2)


def _sized(letters: str, names: str, *sizes: tuple[int, ...]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Return shapes by name, such as "x:nd bias:f", for each of several sizes of the letters."""
    axes = dict(name.split(":") for name in names.split())
    return tuple(
        {name: tuple(size[letters.index(letter)] for letter in shape) for name, shape in axes.items()} for size in sizes
    )


def _heads(*sizes: tuple[int, int, int, int]) -> tuple[dict[str, tuple[int, ...]], ...]:
    return tuple({"qkv": (n, t, 3 * h * k), "query_weight": (k,), "key_weight": (k,)} for n, t, h, k in sizes)


def _rotated(qkv: Tensor, query_weight: Tensor | None, key_weight: Tensor | None, *, rotate: bool = True) -> Tensor:
    """Rotate two heads, or as many as the weights imply, by distinct angles."""
    t, d = qkv.shape[1], qkv.shape[2] // 3
    heads = 2 if query_weight is None else d // len(query_weight)
    angles = torch.arange(t * (d // heads // 2), dtype=torch.float32).reshape(t, -1) if rotate else None
    cos, sin = (None, None) if angles is None else (angles.cos(), angles.sin())
    return vector.rotate_heads(qkv, heads, cos=cos, sin=sin, query_weight=query_weight, key_weight=key_weight)


def _unary_shapes(*shapes: tuple[int, ...]) -> tuple[dict[str, tuple[int, ...]], ...]:
    return tuple({"x": shape} for shape in shapes)


def _max_sum_length(shapes: dict[str, tuple[int, ...]]) -> int:
    return max(max(shape, default=1) for shape in shapes.values()) * 4


LAYER, GATED = "x:nd weight:fd bias:f", "x:ntd weight:fd bias:f gate:nf residual:ntf"
MLP = "x:ntd weight:ed bias:e weight2:fe bias2:f gate:nf residual:ntf"
ROWS = ((1, 1, 1), (3, 5, 7), (13, 129, 1), (25, 2100, 33), (65, 33, 129), (200, 64, 96))
STREAMS = _sized("ntd", "residual:ntd shift:nd scale:nd", (1, 1, 8), (2, 3, 5), (3, 65, 33), (2, 70, 384))
CASES = {
    "linear": Case(hcops.linear, _sized("ndf", LAYER, *ROWS), _max_sum_length),
    "linear without bias": Case(
        lambda x, w: hcops.linear(x, w),
        ({"x": (5, 7), "weight": (3, 7)}, {"x": (2, 3, 64), "weight": (80, 64)}),
        _max_sum_length,
    ),
    "linear_gelu": Case(lambda x, w, b: hcops.linear(x, w, b, gelu=True), _sized("ndf", LAYER, *ROWS), _max_sum_length),
    "linear_gate_residual": Case(
        lambda x, w, b, gate, residual: hcops.linear(x, w, b, gate=gate, residual=residual),
        _sized("ntdf", GATED, (1, 1, 1, 1), (2, 3, 5, 7), (3, 64, 32, 48)),
        _max_sum_length,
    ),
    "mlp": Case(
        lambda x, w1, b1, w2, b2, gate, residual: fused.mlp(x, w1, b1, w2, b2, gate=gate, residual=residual),
        _sized("ntdef", MLP, (1, 1, 1, 1, 1), (2, 3, 5, 9, 7), (3, 64, 32, 128, 32)),
        _max_sum_length,
    ),
    "adaln": Case(vector.adaln, STREAMS, _max_sum_length),
    "adarms": Case(lambda x, shift, scale: vector.adaln(x, shift, scale, rms=True), STREAMS, _max_sum_length),
    "rotate_heads": Case(
        lambda qkv, query, key: _rotated(qkv, query, key),
        _heads((1, 1, 1, 2), (2, 3, 2, 6), (3, 65, 3, 72), (2, 70, 6, 64)),
        _max_sum_length,
    ),
    "rotate_heads without norm": Case(
        lambda qkv: _rotated(qkv, None, None), _unary_shapes((2, 5, 24), (2, 40, 216)), _max_sum_length
    ),
    "rotate_heads without rotation": Case(
        lambda qkv, query, key: _rotated(qkv, query, key, rotate=False),
        _heads((2, 3, 2, 5), (2, 40, 2, 36)),
        _max_sum_length,
    ),
    "swiglu": Case(vector.swiglu, _unary_shapes((1, 1, 2), (2, 3, 10), (2, 5, 2064)), lambda _: 1),
    "gate_residual": Case(
        vector.gate_residual,
        tuple({"residual": s, "gate": (s[0], s[2]), "y": s} for s in ((1, 1, 1), (2, 3, 5), (3, 70, 64))),
        _max_sum_length,
    ),
    "attention": Case(
        lambda qkv: hcops.attention(qkv, 2),
        ({"x": (1, 1, 6)}, {"x": (2, 5, 18)}, {"x": (1, 64, 432)}, {"x": (2, 257, 198)}, {"x": (2, 100, 384)}),
        _max_sum_length,
    ),
    "silu": Case(vector.silu, _unary_shapes((1,), (3, 5), (2, 1000)), lambda _: 1),
    "gelu": Case(vector.gelu, _unary_shapes((1,), (3, 5), (2, 1000)), lambda _: 1),
    "exp": Case(vector.exp, _unary_shapes((1,), (3, 5), (2, 1000)), lambda _: 1),
    "tanh": Case(vector.tanh, _unary_shapes((1,), (3, 5), (2, 1000)), lambda _: 1),
    "softmax": Case(vector.softmax, _unary_shapes((1, 1), (3, 5), (2, 4, 1000)), _max_sum_length),
    "mse": Case(vector.mse, tuple({"x": s, "y": s} for s in ((1, 1), (3, 5), (2, 40_000))), _max_sum_length),
    "scale_add": Case(
        lambda x, y: vector.scale_add(x, y, alpha=0.5, beta=-2.0),
        tuple({"x": s, "y": s} for s in ((1,), (3, 5), (2, 1000))),
        lambda _: 1,
    ),
    "patchify": Case(lambda x: vector.patchify(x, 2), _unary_shapes((1, 1, 2, 2), (2, 3, 4, 6)), lambda _: 1),
    "patchify, channels last": Case(lambda x: vector.patchify(x, 3, order=1), _unary_shapes((2, 3, 6, 9)), lambda _: 1),
    "unpatchify": Case(lambda x: vector.unpatchify(x, 2, 2), _unary_shapes((1, 2, 4), (2, 6, 12)), lambda _: 1),
}
# Inputs that stay fp32 under autocast: master weights and the residual stream.
STAYS_FP32 = ("weight", "bias", "weight2", "bias2", "query_weight", "key_weight", "residual")
MODES = ("fp32", "bf16", "autocast")
ADAMW = {"lr": 1.0, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}


def make(case: Case, index: int, mode: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return leaves for the fast operator, and the same numbers in float64 as its arithmetic reads them."""
    generator = torch.Generator().manual_seed(index)
    leaves, exact = [], []
    for name, shape in case.shapes[index].items():
        drawn = torch.randn(shape, generator=generator)
        stays = mode == "fp32" or (mode == "autocast" and name in STAYS_FP32)
        leaf = drawn if stays else drawn.bfloat16()
        rounded = leaf.bfloat16() if mode == "autocast" and name.startswith("weight") else leaf
        leaves.append(leaf.requires_grad_())
        exact.append(rounded.detach().double().requires_grad_())
    return leaves, exact


def is_within_tolerance(got: Tensor, exact: Tensor, *, mode: str, length: int) -> bool:
    """Check the relative error in the 2-norm: one fp32 rounding per term as a random walk, and a few bf16 roundings of
    all elements.
    """
    allowed = FP32_ROUNDOFF * (8 + 4 * length**0.5) + (0 if mode == "fp32" else 6 * BF16_ROUNDOFF)
    exact = exact.detach()
    difference = torch.linalg.vector_norm(got.detach().double() - exact)
    # Differences of nearly equal numbers (dx of a norm over one element is 0) are measured against the size of a unit.
    return bool(difference <= allowed * max(float(torch.linalg.vector_norm(exact)), exact.numel() ** 0.5))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_forward_and_gradients_match_float64(server: str, name: str, mode: str) -> None:
    case = CASES[name]
    for index, shapes in enumerate(case.shapes):
        leaves, exact = make(case, index, mode)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
            out = case.call(*leaves)
        dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(99)).to(out.dtype)
        with hcops.use("reference"):
            exact_out = case.call(*exact)
            exact_gradients = torch.autograd.grad(exact_out, exact, dout.double())
        got = torch.autograd.grad(out, leaves, dout)
        length = case.length(shapes)
        assert is_within_tolerance(out, exact_out, mode=mode, length=length), f"{shapes}: out"
        for argument, leaf, gradient, expected in zip(shapes, leaves, got, exact_gradients, strict=True):
            assert gradient.dtype == leaf.dtype
            assert is_within_tolerance(gradient, expected, mode=mode, length=length), (
                f"{shapes}: gradient of {argument}"
            )


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("uses", ["both", "norm", "stream"])
@pytest.mark.parametrize("server", [*SERVERS, "reference"], indirect=True)
def test_stream_gradient_is_added_to_norm_gradient(server: str, uses: str, rms: bool) -> None:
    leaves, _ = make(CASES["adaln"], 3, "fp32")
    fused_leaves, separate = [leaf.detach().clone().requires_grad_() for leaf in leaves], leaves
    out, stream = vector.adaln_and_stream(*fused_leaves, rms=rms)
    assert torch.equal(stream, fused_leaves[0])
    pairs = ((out, stream), (vector.adaln(*separate, rms=rms), separate[0]))
    for norm, x in pairs:
        loss = {"both": (norm * x.exp()).sum(), "norm": norm.square().sum(), "stream": x.square().sum()}[uses]
        loss.backward()
    for found, expected in zip(fused_leaves, separate, strict=True):
        assert (found.grad is None) == (expected.grad is None)
        if expected.grad is not None:
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("server", [*SERVERS, "reference"], indirect=True)
def test_swiglu_gradient_of_extreme_gates_has_the_limits_of_silu(server: str, dtype: torch.dtype) -> None:
    gate = torch.tensor([-3e38, -1e36, -1e35, -1e30, -1000.0, -90.0, -80.0, 1e30, 1e38], dtype=dtype)
    value, dout = torch.full_like(gate, 2.0), torch.full_like(gate, -1.5)
    gate, value = gate[None, None], value[None, None]  # (N, T, E) each
    x = torch.cat([gate, value], dim=2).requires_grad_()
    vector.swiglu(x).backward(dout[None, None])
    exact = gate.double() / (1 + torch.exp(-gate.double()))
    slope = torch.where(gate < 0, exact, 1.0)  # to fp32, beyond 80
    expected = torch.cat([-3.0 * slope, -1.5 * exact], dim=2).to(dtype)
    close = {"rtol": 0.02, "atol": 1e-36}  # 2%: at -80 the slope is -79, not -80 sigmoid(-80)
    torch.testing.assert_close(x.grad, expected, **close)
    assert x.grad[0, 0, 9:14].eq(0).all()
    for gate_out in (-torch.inf, torch.inf, torch.nan):  # as in PyTorch: inf has no slope, and -inf no sigmoid
        x = torch.tensor([[[gate_out, 2.0]]], dtype=dtype, requires_grad=True)
        vector.swiglu(x).backward(torch.ones(1, 1, 1, dtype=dtype))
        assert x.grad.isnan().flatten().tolist() == [True, gate_out != torch.inf]


@pytest.mark.parametrize("server", [*SERVERS, "reference"], indirect=True)
def test_rms_norm_with_overflowing_squares_matches_pytorch(server: str) -> None:
    x = torch.tensor([[[1e20, -1e20, 3.0, 0.0], [1e19, -1e19, 1e19, 1e19], [1e18, -1e18, 0.0, 0.0]]])  # (N, T, D)
    exact = torch.nn.functional.rms_norm(x, (4,), eps=1e-6)
    assert exact[0, :2].eq(0).all()
    zeros, ones = torch.zeros(1, 4), torch.ones(4)
    x.requires_grad_()
    normed = vector.adaln(x, zeros, zeros, rms=True)
    heads = _rotate(torch.cat([x, x, x], dim=2), 1, cos=None, sin=None, query_weight=ones, key_weight=ones)
    for out in (normed, heads[..., :4], heads[..., 4:8]):
        torch.testing.assert_close(out, exact)
        (dx,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        assert dx[0, :2].eq(0).all()


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_softmax_of_infinite_and_nan_rows_matches_pytorch(server: str) -> None:
    x = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3, [torch.inf, 0, 1], [torch.nan, 0, 1], [3e38, -3e38, 0]])
    torch.testing.assert_close(vector.softmax(x), torch.softmax(x, 1), equal_nan=True)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_autocast_outputs_are_bf16_and_residual_stream_is_fp32(server: str) -> None:
    stream, modulation = torch.randn(2, 3, 8), torch.randn(2, 16).bfloat16()
    weight, bias = torch.randn(8, 8), torch.randn(8)
    shift, scale = modulation.chunk(2, dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normalized = vector.adaln(stream, shift, scale)
        y = hcops.linear(normalized, weight, bias)
        out = hcops.linear(y, weight, bias, gate=scale, residual=stream)
    assert (normalized.dtype, y.dtype, out.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)


def _leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_every_operator_with_a_gradient_has_a_case() -> None:
    assert {name.partition(" ")[0].rstrip(",") for name in CASES} == set(OPERATORS)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_reference_equal_finite_differences(name: str) -> None:
    _, exact = make(CASES[name], CASES[name].small, "fp32")
    with hcops.use("reference"):
        assert torch.autograd.gradcheck(CASES[name].call, exact)


# without "test_aot_dispatch_dynamic", which takes seconds; the next test compiles every operator
RULES = ("test_schema", "test_autograd_registration", "test_faketensor")


class Recorder(TorchDispatchMode):
    """Mode that collects the calls of operators of dithc, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "dithc":
            self.calls[func.name()] = (func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["c", "numba"])
@pytest.mark.parametrize("name", [name for name in CASES if " " not in name])
def test_operators_and_gradients_pass_torch_opcheck(name: str, backend: str, use_backend) -> None:
    use_backend(backend)
    leaves, _ = make(CASES[name], CASES[name].small, "fp32")
    with Recorder() as mode:
        CASES[name].call(*leaves).sum().backward()
    assert mode.calls
    for func, inputs, settings in mode.calls.values():
        torch.library.opcheck(func, inputs, settings, test_utils=RULES)


@pytest.mark.parametrize("name", CASES)
def test_eager_and_compiled_calls_are_bitwise_equal(name: str, fast: None) -> None:
    case = CASES[name]
    leaves, _ = make(case, len(case.shapes) - 1, "fp32")
    out = case.call(*leaves)
    gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    traced = torch.compile(case.call, backend="aot_eager", fullgraph=True, dynamic=False)(*leaves)
    traced_gradients = torch.autograd.grad(traced, leaves, torch.ones_like(out))
    assert torch.equal(out, traced)
    for found, expected in zip(gradients, traced_gradients, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["adaln", "rotate_heads"])
@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_sums_over_tokens_are_bitwise_equal_for_any_number_of_threads(server: str, name: str) -> None:
    leaves, _ = make(CASES[name], 3, "fp32")
    num_threads = torch.get_num_threads()
    found = []
    try:
        for threads, _ in itertools.product((1, 2), range(50)):
            torch.set_num_threads(threads)
            out = CASES[name].call(*leaves)
            found.append(torch.autograd.grad(out, leaves, out.detach()))
    finally:
        torch.set_num_threads(num_threads)
    assert all(torch.equal(a, b) for run in found for a, b in zip(run, found[0], strict=True))


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_strided_and_chunked_inputs_match_contiguous_inputs(server: str) -> None:
    wide, six = torch.randn(2, 5, 3, 16), torch.randn(2, 6 * 8)
    x = wide[:, :, 1, 4:12]  # rows with gaps
    shift, scale, gate = six.chunk(6, dim=1)[1:4]
    assert torch.equal(vector.adaln(x, shift, scale), vector.adaln(*(v.contiguous() for v in (x, shift, scale))))
    weight = torch.randn(8, 8)
    assert torch.equal(hcops.linear(x, weight.t()), hcops.linear(x.contiguous(), weight.t().contiguous()))
    y = torch.randn(2, 8, 5).transpose(1, 2)
    assert torch.equal(
        vector.gate_residual(x, gate, y), vector.gate_residual(x.contiguous(), gate.contiguous(), y.contiguous())
    )


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_empty_input_yields_empty_output_and_zero_gradients(server: str) -> None:
    x, weight, bias = torch.randn(0, 8, requires_grad=True), _leaf(5, 8), _leaf(5)
    out = hcops.linear(x, weight, bias)
    assert out.shape == (0, 5)
    out.sum().backward()
    assert not weight.grad.any()
    assert not bias.grad.any()
    assert vector.silu(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_zero_tokens_yield_empty_output_and_zero_head_weight_gradients(server: str, shape: tuple[int, int]) -> None:
    qkv, query, key = torch.randn(*shape, 24, requires_grad=True), _leaf(4), _leaf(4)
    out = _rotate(qkv, 2, cos=torch.ones(shape[1], 2), sin=torch.ones(shape[1], 2), query_weight=query, key_weight=key)
    out.sum().backward()
    assert out.shape == qkv.grad.shape == qkv.shape
    assert torch.equal(query.grad, torch.zeros(4))
    assert torch.equal(key.grad, torch.zeros(4))
    assert vector.swiglu(torch.empty(*shape, 8)).shape == (*shape, 4)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_heads_without_norm_and_rotation_are_copied(server: str) -> None:
    qkv = torch.randn(3, 2, 24).transpose(0, 1).requires_grad_()
    out = _rotate(qkv, 2, cos=None, sin=None)
    assert torch.equal(out, qkv)
    dout = torch.randn(3, 2, 24).transpose(0, 1)
    assert torch.equal(torch.autograd.grad(out, qkv, dout)[0], dout)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "whole numbers": (
        lambda: hcops.linear(torch.ones(2, 3, dtype=torch.int64), torch.randn(4, 3)),
        r"linear, argument x(.|\n)*int64",
    ),
    "a type of its own": (
        lambda: hcops.linear(torch.randn(2, 3), torch.randn(4, 3, dtype=torch.bfloat16)),
        "linear, argument weight",
    ),
    "width of x": (lambda: hcops.linear(torch.randn(2, 5), torch.randn(4, 3)), "linear, argument x"),
    "length of bias": (lambda: hcops.linear(torch.randn(2, 3), torch.randn(4, 3), torch.randn(3)), "argument bias"),
    "a weight of three dimensions": (lambda: hcops.linear(torch.randn(2, 3), torch.randn(1, 4, 3)), "argument weight"),
    "gate without residual": (lambda: hcops.linear(_leaf(1, 2, 3), _leaf(4, 3), gate=_leaf(1, 4)), "gate, residual"),
    "shape of residual": (
        lambda: hcops.linear(_leaf(1, 2, 3), _leaf(4, 3), gate=_leaf(1, 4), residual=_leaf(1, 2, 3)),
        "argument residual",
    ),
    "shape of scale": (lambda: vector.adaln(_leaf(2, 3, 4), _leaf(2, 4), _leaf(1, 4)), "adaln, argument"),
    "two dimensions": (lambda: vector.adaln(_leaf(3, 4), _leaf(3, 4), _leaf(3, 4)), "adaln, argument x"),
    "width of the second layer": (
        lambda: fused.mlp(
            _leaf(1, 2, 3), _leaf(4, 3), None, _leaf(3, 5), None, gate=_leaf(1, 3), residual=_leaf(1, 2, 3)
        ),
        "linear_gate_residual, argument x",
    ),
    "type of the second layer": (
        lambda: fused.mlp(
            *(_leaf(1, 2, 3), _leaf(4, 3), None, _leaf(3, 4).bfloat16(), None),
            gate=_leaf(1, 3),
            residual=_leaf(1, 2, 3),
        ),
        "mlp, argument weight2",
    ),
    "heads of an odd width": (lambda: _rotate(_leaf(1, 2, 18), 2), "rotate_heads, argument num_heads"),
    "cosines of other tokens": (lambda: _rotate(_leaf(1, 3, 24), 2), "rotate_heads, argument cos"),
    "sines of another type": (
        lambda: _rotate(_leaf(1, 2, 24), 2, sin=torch.zeros(2, 2).double()),
        "rotate_heads, argument sin",
    ),
    "cosines without sines": (lambda: _rotate(_leaf(1, 2, 24), 2, sin=None), "rotate_heads, argument cos, sin"),
    "weight of one norm": (
        lambda: _rotate(_leaf(1, 2, 24), 2, query_weight=_leaf(4)),
        "rotate_heads, argument query_weight, key_weight",
    ),
    "length of a norm's weight": (
        lambda: _rotate(_leaf(1, 2, 24), 2, query_weight=_leaf(4), key_weight=_leaf(8)),
        "rotate_heads, argument key_weight",
    ),
    "half a gate": (lambda: vector.swiglu(_leaf(1, 2, 5)), "swiglu, argument x"),
    "heads that do not divide": (lambda: hcops.attention(_leaf(1, 2, 12), 3), "attention, argument num_heads"),
    "no width": (lambda: hcops.attention(_leaf(1, 2, 0), 3), "attention, argument qkv"),
    "width without q, k and v": (lambda: hcops.attention(_leaf(1, 2, 10), 2), "attention, argument qkv"),
    "patches that do not fit": (lambda: vector.patchify(_leaf(1, 1, 3, 4), 2), "patchify, argument p"),
    "order of patches": (lambda: vector.patchify(_leaf(1, 1, 4, 4), 2, order=2), "patchify, argument order"),
    "order of an image": (lambda: vector.unpatchify(_leaf(1, 4, 4), 2, 2, order=-1), "unpatchify, argument order"),
    "an array": (lambda: hcops.linear([[1.0]], _leaf(1, 1)), r"linear, argument x(.|\n)*list"),
    "weight without memory": (
        lambda: hcops.linear(torch.randn(2, 3, device="meta"), _leaf(4, 3)),
        "linear, argument weight",
    ),
    "type of the result": (
        lambda: torch.ops.dithc.linear(torch.randn(2, 3), torch.randn(4, 3), None, torch.float64),
        "linear, argument dtype",
    ),
    "step before the first": (
        lambda: hcops.optimizer.adamw(*([torch.zeros(3)] for _ in range(4)), **ADAMW, step=0),
        "adamw, argument step",
    ),
    "rows that do not fit": (lambda: vector.unpatchify(_leaf(1, 5, 4), 2, 2), "unpatchify, argument rows"),
    "two shapes": (lambda: vector.mse(_leaf(2, 3), _leaf(2, 4)), "mse, argument y"),
    "misaligned memory": (lambda: vector.silu(_misaligned()), "argument x(.|\n)*multiple of 4 bytes"),
}


def _rotate(qkv: Tensor, num_heads: int, **changes: Tensor | None) -> Tensor:
    """Rotate with tables for two tokens and heads of width 4."""
    settings = {"cos": torch.zeros(2, 2), "sin": torch.zeros(2, 2), "query_weight": None, "key_weight": None}
    return vector.rotate_heads(qkv, num_heads, **(settings | changes))


def _misaligned() -> Tensor:
    return torch.frombuffer(bytearray(4 * 5 + 1), dtype=torch.float32, offset=1, count=5)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("backend", ["c", "numba"])
def test_invalid_input_is_rejected_with_argument_name(
    name: str, backend: str, use_backend: Callable[[str], None]
) -> None:
    use_backend(backend)
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_layer_without_inputs_returns_bias_and_bias_gradient(server: str) -> None:
    x, weight, bias = torch.randn(3, 0, requires_grad=True), _leaf(5, 0), _leaf(5)
    out = hcops.linear(x, weight, bias)
    assert torch.equal(out, bias.expand(3, 5))
    out.sum().backward()
    assert torch.equal(bias.grad, torch.full((5,), 3.0))


def test_sparse_input_is_served_by_the_reference(fast: None) -> None:
    x = torch.eye(3)
    assert torch.equal(vector.scale_add(x.to_sparse(), alpha=2.0).to_dense(), 2 * x)


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_in_place_update_is_detected_by_autograd(backend: str, use_backend: Callable[[str], None]) -> None:
    use_backend(backend)
    weight, lists = _leaf(3), [[torch.zeros(3)] for _ in range(4)]
    loss = (weight * weight).sum()
    hcops.optimizer.adamw([weight.detach()], *lists[:3], averages=lists[3], **ADAMW, step=1)
    assert [tensors[0]._version for tensors in lists] == [0, 1, 1, 1]
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


@pytest.mark.skipif(native.library() is None, reason="no C kernels")
def test_torch_blocking_applies_to_plain_products_without_autocast(use_backend: Callable[[str], None]) -> None:
    use_backend("c")
    x, weight, bias = _leaf(1, 5, 7), _leaf(7, 7), _leaf(7)
    gate, residual = _leaf(1, 7), _leaf(1, 5, 7)
    calls = (
        lambda: hcops.linear(x, weight, bias, gelu=True),
        lambda: hcops.linear(x, weight, bias, gate=gate, residual=residual),
    )
    for call in calls:
        plain = call()
        with tuning.use_blocking("torch"):
            assert torch.equal(call(), plain)
    out = hcops.linear(x, weight)
    with tuning.use_blocking("torch"), torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(out, [x, weight], torch.ones_like(out))
    for gradient, exact in zip(got, (weight.sum(0).expand(1, 5, 7), x.sum(1).expand(7, 7)), strict=True):
        torch.testing.assert_close(gradient, exact)


@pytest.mark.skipif(native.library() is None, reason="no C kernels")
def test_no_grad_forward_produces_no_saved_tensors(use_backend: Callable[[str], None], monkeypatch) -> None:
    use_backend("c")
    x, weight, bias, weight2 = _leaf(2, 5, 7), _leaf(9, 7), _leaf(9), _leaf(9, 9)
    gate, residual = torch.randn(2, 9), torch.randn(2, 5, 9)
    calls = {
        "linear_gelu": lambda: hcops.linear(x, weight, bias, gelu=True),
        "linear_gate_residual": lambda: hcops.linear(x, weight, bias, gate=gate, residual=residual),
        "mlp": lambda: fused.mlp(x, weight, bias, weight2, None, gate=gate, residual=residual),
    }
    kept = []

    def spy(name: str) -> Callable[..., Any]:
        def call(*inputs: Any, **settings: Any) -> Any:
            found = hcops.backend.raw(name)(*inputs, **settings)
            kept.append(found[-1] is not None)
            return found

        return call

    monkeypatch.setattr("dithc.engine.hcops.autograd.custom_ops.raw", spy)
    for call in calls.values():
        with_gradient = call()
        with torch.no_grad():
            assert torch.equal(call(), with_gradient)
    assert kept == [True, False] * 3


@pytest.mark.parametrize("mode", ["fp32", "autocast"])
def test_mlp_with_parts_on_different_backends_matches_float64(mode: str, fast: None, monkeypatch) -> None:
    case = CASES["mlp"]
    leaves, exact = make(case, 1, mode)
    served = {row["op"]: row["backend"] for row in hcops.describe_kernels()}
    monkeypatch.setattr(
        "dithc.engine.hcops.blocks.fused.backend_of", lambda op: "other" if op == "linear" else served[op]
    )
    monkeypatch.delitem(OPERATORS, "mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
        out = case.call(*leaves)
    with hcops.use("reference"):
        expected = case.call(*exact)
    assert is_within_tolerance(out, expected, mode=mode, length=_max_sum_length(case.shapes[1]))


def test_mlp_saves_branch_tensors_in_bf16_under_autocast(fast: None) -> None:
    leaves, _ = make(CASES["mlp"], 1, "autocast")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = CASES["mlp"].call(*leaves)
    *_, y = out.grad_fn.saved_tensors
    assert (out.dtype, y.dtype) == (torch.float32, torch.bfloat16)


def test_raw_kernels_reject_unsupported_tensors(fast: None) -> None:
    silu = hcops.backend.raw("silu_forward")
    for bad in (torch.randn(4, 4).t()[1:], torch.randn(3, dtype=torch.float64), torch.randn(3, device="meta")):
        with pytest.raises(ValueError, match="operator silu, argument x"):
            silu(bad)
    tensors = [torch.zeros(3)]
    with pytest.raises(ValueError, match="argument gradients"):
        hcops.optimizer.adamw(tensors, [torch.zeros(4)], tensors, tensors, **ADAMW, step=1)


class Marked(Tensor):
    """Subclass, such as DTensor, that must receive torch's own operators."""


def test_unsupported_inputs_use_the_reference_and_are_logged_once(fast, monkeypatch, caplog) -> None:
    monkeypatch.setattr("dithc.engine.hcops.backend._logged", set())
    for _ in range(2):
        assert vector.silu(torch.randn(3, dtype=torch.float64)).dtype == torch.float64
        assert isinstance(vector.gelu(torch.randn(3).as_subclass(Marked)), Marked)
        torch.func.grad(lambda x: vector.exp(x).sum())(torch.randn(3))
        torch.func.jvp(vector.tanh, (torch.randn(3),), (torch.ones(3),))
    for op, reason in (
        ("silu", "torch.float64"),
        ("gelu", "class Marked"),
        ("exp", "torch.func"),
        ("tanh", "torch.func"),
    ):
        assert [op in line and reason in line for line in caplog.messages].count(True) == 1


def test_second_derivatives_are_rejected_with_fix(fast: None) -> None:
    x = _leaf(3, 4)
    with pytest.raises(ValueError, match=r"second derivative(.|\n)*reference"):
        torch.autograd.grad(vector.silu(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("grad", [False, True])
def test_jit_trace_is_correct_for_new_inputs(grad: bool) -> None:
    """torch.jit.trace records only calls through the dispatcher. Other calls would leave uninitialized memory."""
    weight, bias = torch.randn(8, 6), torch.randn(8)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(lambda x: hcops.linear(x, weight, bias), torch.randn(3, 6), check_trace=False)
        other = torch.randn(3, 6)
        torch.testing.assert_close(traced(other), torch.nn.functional.linear(other, weight, bias))
