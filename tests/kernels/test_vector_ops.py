"""Vector operators of the C library at the limits of fp32, caches and address space, on instruction sets of this CPU.

`vector_cases.py` compares all of them with float64. Tolerances follow from the unit roundoff of fp32 and bf16, the
length of sums and the size of their terms. The table in kernels/activation/activation.h contains those of functions.

Legend: N batch, T tokens, D width.
"""

import ctypes
import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.engine import native
from tests.kernels.isas import is_supported, newest_and_alternates

ONE = 2.0**-24  # half a unit in the last place of fp32, relative
ROUND = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}  # relative error of a store
TYPES = {torch.float32: 0, torch.bfloat16: 1}
EXP, TANH, GELU, SILU = range(4)
F32, BF16 = torch.float32, torch.bfloat16
MIXTURES = [(F32, F32), (BF16, BF16), (F32, BF16), (BF16, F32)]
# Around the vectors of every instruction set, the unrolled loops, and the runs of 4 x 4,096 that bypass the caches.
LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1023, 16385, 70001]
WIDTHS = [1, 3, 15, 16, 17, 72, 384, 1152, 1155]
SENTINEL = 0x5A


ISAS = [name for name in ("ref", "avx2", "avx512", "neon", "sve", "sme") if is_supported(name)]
pytestmark = pytest.mark.skipif(not ISAS, reason=f"C kernels: {native.load_library().reason}")


@pytest.fixture(params=newest_and_alternates(ISAS))
def isa(request):
    return request.param


class Out:
    """Tensor that a kernel writes, between bytes that it must not write."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = F32, offset: int = 0):
        self.size = int(np.prod(shape)) * dtype.itemsize
        self.first = 128 + offset * dtype.itemsize
        self.bytes = torch.full((self.first + self.size + 128,), SENTINEL, dtype=torch.uint8)
        self.dtype, self.shape = dtype, shape

    def address(self) -> int:
        return self.bytes.data_ptr() + self.first

    def tensor(self) -> Tensor:
        assert (self.bytes[: self.first] == SENTINEL).all(), "written before the start"
        assert (self.bytes[self.first + self.size :] == SENTINEL).all(), "written past the end"
        content = self.bytes[self.first : self.first + self.size].clone()
        return content.view(self.dtype).reshape(self.shape)


def put(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), TYPES[tensor.dtype]


def random(shape, dtype=F32, *, seed=0, scale=1.0, shift=0.0) -> Tensor:
    values = np.random.default_rng([seed, *np.atleast_1d(shape)]).standard_normal(shape) * scale + shift
    return torch.from_numpy(np.asarray(values)).to(F32).to(dtype)


def close(got: Tensor, exact: Tensor, bound) -> None:
    """Check |got - exact| <= bound + the rounding of the store, elementwise; bound is float64."""
    stored = ROUND[got.dtype] * exact.abs() * (1 + 2**-7) + 2.0**-133
    excess = (got.double() - exact).abs() - bound - stored
    assert not torch.isnan(got[~torch.isnan(exact)]).any()
    assert (excess <= 0).all(), f"off by {excess.max().item():.3g} more than allowed"


def apply(isa, function, x, *, out_type=F32, threads=1, offset=0) -> Tensor:
    out = Out(tuple(x.shape), out_type, offset)
    native.library().hc_map(
        native.context(isa=isa, num_threads=threads), function, x.numel(), *put(x), out.address(), TYPES[out_type]
    )
    return out.tensor()


def gradient(isa, function, dout, x, *, out_type=F32, threads=1) -> Tensor:
    out = Out(tuple(x.shape), out_type)
    native.library().hc_map_backward(
        *(native.context(isa=isa, num_threads=threads), function, x.numel(), *put(dout), *put(x)),
        *(out.address(), TYPES[out_type]),
    )
    return out.tensor()


@functools.cache
def adversarial() -> Tensor:
    """Return all magnitudes (tiny, denormal, huge), dense where functions bend or overflow."""
    rng = np.random.default_rng(7)
    anything = rng.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([0, 88.72283, 88.72284, 88.7, 87.33, 103.97, 104, 9, 10, 11.2, 0.34657, 1e-38, 1e-45, 3.4e38])
    around = (edges[:, None] * (1 + rng.uniform(-1e-3, 1e-3, (len(edges), 2000)))).ravel()
    parts = [anything, around, -around, rng.uniform(-110, 110, 400_000), rng.normal(0, 2, 400_000)]
    with np.errstate(over="ignore"):
        x = np.concatenate([part.astype(np.float32) for part in parts])
    return torch.from_numpy(x[np.isfinite(x)])


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)) in float64, exact near 0."""
    e = torch.exp(-x.abs())
    return torch.where(x > 0, 1 / (1 + e), e / (1 + e))


def twice_u(x: Tensor) -> Tensor:
    return 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


def ulp(exact: Tensor) -> Tensor:
    """Return the distance of neighboring fp32 numbers at `exact`; below 2^-126, the distance of denormals."""
    exponent = torch.frexp(exact.abs().clamp(min=2.0**-126)).exponent
    return torch.ldexp(torch.ones_like(exact), exponent - 24)


# Table of kernels/activation/activation.h: bound in units in the last place, plus an absolute bound.
FUNCTIONS = {
    EXP: (torch.exp, 1.0, 0.0),
    TANH: (torch.tanh, 2.5, 0.0),
    SILU: (lambda x: x * sigmoid(x), 2.5, 3e-37),
    GELU: (lambda x: x * sigmoid(twice_u(x)), 4.0, 6e-8),
}
GRADIENTS = {
    SILU: lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    GELU: lambda x: (
        sigmoid(twice_u(x)) * (1 + x * (2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)) * sigmoid(-twice_u(x)))
    ),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_error_is_within_the_bound_on_adversarial_numbers(isa, function):
    x = adversarial()
    exact_of, units, absolute = FUNCTIONS[function]
    exact = exact_of(x.double())
    got = apply(isa, function, x).double()
    overflow = exact.abs() >= 2.0**128 - 2.0**103
    assert torch.equal(got[overflow], exact[overflow].sign() * torch.inf)
    error = (got - exact).abs()[~overflow]
    assert (error <= units * ulp(exact[~overflow]) + absolute).all()


@pytest.mark.parametrize("function", GRADIENTS)
def test_gradient_error_is_within_the_bound_on_adversarial_numbers(isa, function):
    x = adversarial()[adversarial().abs() < 1e18]  # x^2 stays finite in torch's float64 formula
    exact = GRADIENTS[function](x.double())
    got = gradient(isa, function, torch.ones_like(x), x).double()
    assert ((got - exact).abs() <= 2.4e-7 + 4 * ONE * exact.abs()).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_inf_and_nan_results_match_pytorch(isa, function):
    torch_function = {EXP: torch.exp, TANH: torch.tanh, SILU: torch.nn.functional.silu,
                      GELU: functools.partial(torch.nn.functional.gelu, approximate="tanh")}[function]  # fmt: skip
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e-45, 3e38, -3e38], requires_grad=True)
    expected = torch_function(x)
    assert torch.equal(apply(isa, function, x.detach()).isnan(), expected.isnan())
    assert torch.equal(apply(isa, function, x.detach()).isinf(), expected.isinf())
    if function in GRADIENTS:
        expected.sum().backward()
        bad = ~torch.isfinite(x)
        got = gradient(isa, function, torch.ones(8), x.detach())
        assert torch.equal(got[bad].isnan(), x.grad[bad].isnan())
        assert torch.isfinite(got[~bad]).all()


@pytest.mark.parametrize(("x_type", "out_type"), MIXTURES)
@pytest.mark.parametrize("length", LENGTHS)
def test_elementwise_operators_equal_float64_for_all_lengths_and_types(isa, length, x_type, out_type):
    x, dout = random(length, x_type, scale=3.0), random(length, out_type, seed=1)
    exact = FUNCTIONS[GELU][0](x.double())
    for threads in (1, 2, 3):
        for offset in (0, 1):  # an output that is not aligned to a vector
            got = apply(isa, GELU, x, out_type=out_type, threads=threads, offset=offset)
            close(got, exact, 4 * ulp(exact) + 6e-8)
        dx = gradient(isa, GELU, dout, x, out_type=out_type, threads=threads)
        close(dx, dout.double() * GRADIENTS[GELU](x.double()), 4e-7 * dout.double().abs())


@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("x_type", [F32, BF16])
def test_arrays_larger_than_the_caches_equal_results_of_parts(isa, x_type, offset):
    """Above 8 MB per thread, stores bypass the caches and alternate between four runs of addresses."""
    x = random(2_200_003, x_type)
    expected = apply(isa, SILU, x, out_type=x_type, offset=offset)
    parts = [apply(isa, SILU, part.contiguous(), out_type=x_type) for part in x.split(100_000)]
    assert torch.equal(expected, torch.cat(parts))


def swiglu(isa, x: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    out, dx = Out((rows, width // 2), x.dtype), Out((rows, width), x.dtype)
    context, code = native.context(isa=isa), TYPES[x.dtype]
    native.library().hc_swiglu_forward(context, rows, width // 2, *put(x), out.address(), code)
    native.library().hc_swiglu_backward(context, rows, width // 2, *put(dout), *put(x), dx.address(), code)
    return out.tensor(), dx.tensor()


@pytest.mark.parametrize("columns", [64, 65])
@pytest.mark.parametrize("x_type", [F32, BF16])
def test_swiglu_larger_than_the_caches_equals_results_of_parts(isa, x_type, columns):
    rows = 40_000
    x, dout = random((rows, 2 * columns), x_type), random((rows, columns), x_type, seed=1)
    complete = swiglu(isa, x, dout)
    parts = swiglu(isa, x[:100].contiguous(), dout[:100].contiguous())
    assert all(torch.equal(part, many[:100]) for part, many in zip(parts, complete, strict=True))


def condition(n: int, d: int, dtype, seed: int) -> tuple[Tensor, int]:
    """Return (N, D) as a chunk of longer rows, as in a modulation."""
    rows = random((n, 3 * d), dtype, seed=seed, scale=0.5)
    return rows[:, d : 2 * d], 3 * d


def adaln(isa, x, shift, scale, stride, *, out_type, threads=1, eps=1e-6):
    n, t, d = x.shape
    out, mean, rstd = Out((n, t, d), out_type), Out((n, t)), Out((n, t))
    native.library().hc_adaln_forward(
        *(native.context(isa=isa, num_threads=threads), n, t, d, eps, *put(x), shift.data_ptr(), *put(scale), stride),
        *(out.address(), TYPES[out_type], mean.address(), rstd.address()),
    )
    return out.tensor(), mean.tensor(), rstd.tensor()


def adaln_backward(isa, dout, x, scale, stride, mean, rstd, *, dstream=None, threads=1):
    n, t, d = x.shape
    dx, dshift, dscale = Out((n, t, d), x.dtype), Out((n, d), scale.dtype), Out((n, d), scale.dtype)
    native.library().hc_adaln_backward(
        *(native.context(isa=isa, num_threads=threads), n, t, d, *put(dout), *put(x), *put(scale), stride),
        *(mean.data_ptr(), rstd.data_ptr(), *((None, 0) if dstream is None else put(dstream))),
        *(dx.address(), TYPES[x.dtype]),
        *(dshift.address(), dscale.address(), TYPES[scale.dtype]),
    )
    return dx.tensor(), dshift.tensor(), dscale.tensor()


def statistics(x: Tensor, eps=1e-6):
    mean = x.double().mean(2, keepdim=True)
    rstd = 1 / torch.sqrt((x.double() - mean).square().mean(2, keepdim=True) + np.float32(eps).astype(np.float64))
    return mean, rstd


@pytest.mark.parametrize("center", [1e3, 1e5, -3e6])
def test_adaln_of_rows_far_from_zero_keeps_the_variance(isa, center):
    """E[x^2] - E[x]^2 would lose a variance of 1 next to 1e12."""
    x = random((2, 3, 1152), shift=center)
    zeros = torch.zeros(2, 1152)
    out, _, rstd = adaln(isa, x, zeros, zeros, 1152, out_type=F32)
    mean, exact = statistics(x)
    close(rstd, exact[..., 0], 64 * ONE * exact[..., 0])
    close(out, (x.double() - mean) * exact, 64 * ONE * (1 + x.double().sub(mean).abs() * exact))


def test_adaln_limits_inf_and_nan_to_the_affected_rows(isa):
    x = random((1, 6, 72))
    x[0, 1, 3], x[0, 4, 70] = torch.inf, torch.nan
    zeros = torch.zeros(1, 72)
    out, mean, rstd = adaln(isa, x, zeros, zeros, 72, out_type=F32)
    bad = torch.tensor([False, True, False, False, True, False])
    assert out[0, bad].isnan().all()
    assert torch.isfinite(out[0, ~bad]).all()
    dx, dshift, _ = adaln_backward(isa, torch.ones_like(x), x, zeros, 72, mean, rstd)
    assert dx[0, bad].isnan().all()
    assert torch.isfinite(dx[0, ~bad]).all()
    assert torch.isfinite(dshift).all()


@pytest.mark.parametrize("x_type", [F32, BF16])
def test_adaln_backward_is_bitwise_repeatable(isa, x_type):
    """Runs 100 times with 2 and 3 threads. Sums over tokens have a fixed order. The authors' artifact has a race here."""
    n, t, d = 3, 129, 131
    x, dout = random((n, t, d), x_type), random((n, t, d), x_type, seed=1)
    (shift, stride), (scale, _) = condition(n, d, x_type, 1), condition(n, d, x_type, 2)
    _, mean, rstd = adaln(isa, x, shift, scale, stride, out_type=x_type)
    first = adaln_backward(isa, dout, x, scale, stride, mean, rstd)
    for repeat in range(100):
        again = adaln_backward(isa, dout, x, scale, stride, mean, rstd, threads=2 + repeat % 2)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("d", [384, 400])
def test_adaln_larger_than_the_caches_equals_results_of_parts(isa, d):
    n, t = 2, 3000
    x, dout = random((n, t, d)), random((n, t, d), seed=1)
    (shift, stride), (scale, _) = condition(n, d, F32, 1), condition(n, d, F32, 2)
    out, mean, rstd = adaln(isa, x, shift, scale, stride, out_type=F32)
    dx, _, _ = adaln_backward(isa, dout, x, scale, stride, mean, rstd)
    part = slice(320, 352)
    few, few_mean, few_rstd = adaln(isa, x[:, part].contiguous(), shift, scale, stride, out_type=F32)
    few_dx, _, _ = adaln_backward(
        isa, dout[:, part].contiguous(), x[:, part].contiguous(), scale, stride, few_mean, few_rstd
    )
    assert torch.equal(out[:, part], few)
    assert torch.equal(mean[:, part], few_mean)
    assert torch.equal(dx[:, part], few_dx)


def addresses(tensors: list[Tensor | None]):
    return (ctypes.c_void_p * max(1, len(tensors)))(*(None if t is None else t.data_ptr() for t in tensors))


def counts_of(tensors: list[Tensor]):
    return (ctypes.c_int64 * max(1, len(tensors)))(*(t.numel() for t in tensors))


@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 0, 16384, 3], [16383, 1, 50_000, 17] + [9] * 300])
def test_sum_of_squares_of_many_tensors_equals_float64(isa, sizes):
    tensors = [random(size, seed=i) for i, size in enumerate(sizes)]
    exact = sum(float(t.double().square().sum()) for t in tensors)
    found = set()
    for threads in (1, 2, 3):
        total = ctypes.c_double()
        native.library().hc_sum_of_squares(
            native.context(isa=isa, num_threads=threads),
            *(len(tensors), counts_of(tensors), addresses(tensors), ctypes.byref(total)),
        )
        assert total.value == pytest.approx(exact, rel=2.0**-53 * max(1, sum(sizes)))
        found.add(total.value)
    assert len(found) == 1


def test_sum_of_squares_does_not_overflow_and_propagates_nan(isa):
    def total_of(tensor: Tensor) -> float:
        total = ctypes.c_double()
        native.library().hc_sum_of_squares(
            native.context(isa=isa), 1, counts_of([tensor]), addresses([tensor]), ctypes.byref(total)
        )
        return total.value

    assert total_of(torch.full((19,), 1e30)) == pytest.approx(19e60, rel=1e-6)
    assert total_of(torch.full((19,), 1e-30)) == pytest.approx(19e-60, rel=1e-6)
    assert np.isnan(total_of(torch.tensor([1.0, torch.nan])))
    assert np.isinf(total_of(torch.tensor([1.0, torch.inf])))


@pytest.mark.parametrize("sizes", [(2**31, 2**31, 2), (2**62, 2, 2), (2**59, 1, 1), (1, 2**61, 8), (-1, -1, 4)])
def test_overflowing_or_negative_sizes_are_rejected(sizes):
    handle, context = native.library(), native.context()
    x = torch.zeros(16)
    address, array, (n, t, d) = x.data_ptr(), (x.data_ptr(), 0), sizes
    for call in (
        lambda: handle.hc_adaln_forward(context, n, t, d, 1e-6, *array, address, *array, 0, *array, address, address),
        lambda: handle.hc_adaln_backward(
            *(context, n, t, d, *array, *array, *array, 0, address, address, None, 0, *array, address, *array)
        ),
        lambda: handle.hc_gate_residual_forward(context, n, t, d, *array, *array, 0, *array, *array),
        lambda: handle.hc_gate_residual_backward(context, n, t, d, *array, *array, 0, *array, *array, *array),
        lambda: handle.hc_attention_forward(context, n, t, d, 8, *array, *array, address, 0),
        lambda: handle.hc_rotate_heads_forward(context, n, t, d, 8, 1e-6, *(address,) * 6, 0),
        lambda: handle.hc_rotate_heads_backward(context, n, t, d, 8, 1e-6, *(address,) * 7, 0, address, address),
        lambda: handle.hc_attention_backward(context, n, t, d, 8, *array, *array, *array, address, *array, 0),
        lambda: handle.hc_patchify(context, n, 1, t, 1, d, 0, *array, *array),
        lambda: handle.hc_unpatchify(context, 1, n, t, d, 1, 0, *array, *array),
    ):
        with pytest.raises(ValueError):
            call()
    pool = ctypes.c_void_p()
    handle.hc_pool_create(None, ctypes.byref(pool))
    assert handle.hc_pool_tensor(pool, context, 0, 3, (ctypes.c_int64 * 3)(*sizes)) is None


def test_missing_arguments_and_overflowing_counts_or_strides_are_rejected():
    handle, context = native.library(), native.context()
    x = torch.zeros(16)
    address, array, large = x.data_ptr(), (x.data_ptr(), 0), 2**59
    counts, pointers = (ctypes.c_int64 * 2)(2**56, 2**56), (ctypes.c_void_p * 2)(address, address)
    settings = ctypes.byref(native.AdamwSettings(1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, 1, 0.99))
    gemm = native.GemmArguments
    for call in (
        lambda: handle.hc_map(None, EXP, 16, *array, *array),
        lambda: handle.hc_map(context, EXP, 16, address, 2, *array),
        lambda: handle.hc_scale_add(context, 16, 1.0, *array, 1.0, None, 0, *array),
        lambda: handle.hc_adaln_forward(context, 1, 1, 16, 1e-6, *array, None, *array, 16, *array, address, address),
        lambda: handle.hc_map(context, EXP, large, *array, *array),
        lambda: handle.hc_map_backward(context, EXP, large, *array, *array, *array),
        lambda: handle.hc_scale_add(context, large, 1.0, *array, 0.0, None, 0, *array),
        lambda: handle.hc_softmax_forward(context, 2**30, 2**29, *array, *array),
        lambda: handle.hc_softmax_backward(context, 2**29, 2**30, *array, *array, *array),
        lambda: handle.hc_swiglu_forward(context, 2**30, 2**29, *array, *array),
        lambda: handle.hc_swiglu_backward(context, 2**29, 2**30, *array, *array, *array),
        lambda: handle.hc_mse_forward(context, 2**30, 2**30, *array, *array, address),
        lambda: handle.hc_mse_backward(context, 2**30, 2**30, address, *array, *array, *array),
        lambda: handle.hc_adaln_forward(
            context, 4, 1, 1, 1e-6, *array, address, *array, large, *array, address, address
        ),
        lambda: handle.hc_gemm(context, gemm(large, 1, 1, address, 1, 1, 0, address, 1, 1, 0, address, 1, 1, 0)),
        lambda: handle.hc_gemm(context, gemm(2, 1, 1, address, large, 1, 0, address, 1, 1, 0, address, 1, 1, 0)),
        lambda: handle.hc_gemm(context, gemm(2, 1, 1, address, -large, 1, 0, address, 1, 1, 0, address, 1, 1, 0)),
        lambda: handle.hc_sum_of_squares(context, 2, counts, pointers, address),
        lambda: handle.hc_adamw(context, settings, 2, counts, *(pointers,) * 4, None, None),
    ):
        with pytest.raises(ValueError):
            call()


def test_adamw_step_number_below_one_is_rejected():
    settings = native.AdamwSettings(1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, 0, 0.99)
    with pytest.raises(ValueError):
        native.library().hc_adamw(native.context(), ctypes.byref(settings), 0, *(None,) * 7)
