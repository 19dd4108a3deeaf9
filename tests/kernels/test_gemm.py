"""Matrix products of the C library against float64, on every instruction set of this CPU.

Shapes are around every tile, with all layouts, types, cuts and epilogues, and the same bits for 1, 2 and 3 threads.
Tolerances are the bound of hc_gemm in kernels/include/hcops.h, the unit roundoff of each further operation, and the
roundoff of the stored type.

Legend: C (m, n) = A (m, k) B (k, n).
"""

import ctypes
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.engine import native
from tests.kernels.isas import ALL, is_supported, newest_and_alternates

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
NUMBERS = {F32: 0, BF16: 1, F64: 2}
ROUND = {F32: 2.0**-24, BF16: 2.0**-8, F64: 2.0**-53}
THREADS = (1, 2, 3)
# 1, odd, and around tiles of 4, 6, 8, 16, 32 and 48; two complete tiles and a remainder.
EDGES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 97)
TYPES = [(F32, F32, F32, F32), (BF16, F32, BF16, BF16), (F32, BF16, F32, BF16), (BF16, BF16, BF16, F32), (F64,) * 4]
LAYOUTS = list(itertools.product(("rows", "columns"), repeat=2))
GELU_ERROR = {
    F32: 16 * ROUND[F32],
    BF16: 2.0**-12,
    F64: 16 * ROUND[F64],
}  # by type of C; coarse before rounding to bf16


ISAS = [name for name in ALL if is_supported(name)]
pytestmark = pytest.mark.skipif(not ISAS, reason=f"C kernels: {native.load_library().reason}")


@pytest.fixture(params=newest_and_alternates(ISAS))
def isa(request):
    return request.param


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str, *, seed: int) -> Tensor:
    """Return normal numbers in rows or columns with gaps and unaligned starts."""
    generator = torch.Generator().manual_seed(seed)
    lines, length = (rows, columns) if layout == "rows" else (columns, rows)
    wide = torch.randn(lines + 1, length + 3, generator=generator).to(dtype)[1:, 1 : 1 + length]
    return wide if layout == "rows" else wide.t()


def arguments(a: Tensor, b: Tensor, c: Tensor, compute: torch.dtype, **settings: Any) -> native.GemmArguments:
    """Arguments of hc_gemm. A setting is a number, or a tensor that sets address and type."""
    (m, k), n = a.shape, b.shape[1]
    fields = [(x.data_ptr(), *x.stride(), NUMBERS[x.dtype]) for x in (a, b, c)]
    x = native.GemmArguments(m, n, k, *fields[0], *fields[1], *fields[2], 0, NUMBERS[compute])
    for name, value in settings.items():
        setattr(x, name, value.data_ptr() if isinstance(value, Tensor) else value)
        if name in ("bias", "before", "gate", "residual"):
            setattr(x, f"{name}_type", NUMBERS[value.dtype])
    if "gate" in settings:
        x.gate_stride = settings["gate"].stride(0)
    return x


def gemm(isa: str, threads: int, a: Tensor, b: Tensor, out_c: Tensor, compute: torch.dtype, **settings: Any) -> None:
    x = arguments(a, b, out_c, compute, **settings)
    native.library().hc_gemm(native.context(isa=isa, num_threads=threads), ctypes.byref(x))


def operand(x: Tensor, compute: torch.dtype) -> Tensor:
    return (x.to(BF16) if compute == BF16 else x).double()


def product(a: Tensor, b: Tensor, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the product in float64, and hc_gemm's bound of an element's error."""
    exact_a, exact_b = operand(a, compute), operand(b, compute)
    unit = ROUND[F64 if compute == F64 else F32]
    return exact_a @ exact_b, (a.shape[1] + 2) * unit * (exact_a.abs() @ exact_b.abs())


def check(got: Tensor, exact: Tensor, bound: Tensor) -> None:
    stored = 1.01 * ROUND[got.dtype] * (exact.abs() + bound)
    excess = (got.double() - exact).abs() - bound - stored
    assert (excess <= 0).all(), f"{int((excess > 0).sum())} of {excess.numel()} off by up to {float(excess.max())}"


def on_each_number_of_threads(isa, a, b, c_type, compute, *, accumulate=0, start=None, **settings) -> dict[str, Tensor]:
    """Return C, its value before the epilogue, and row sums. Checks the same bits for all numbers of threads, and
    unchanged gaps.
    """
    (m, _), n = a.shape, b.shape[1]
    results = []
    for threads in THREADS:
        buffer = torch.full((m, n + 3), 7.0, dtype=c_type)
        before, sums = torch.zeros_like(buffer), torch.zeros(m, dtype=F64 if compute == F64 else F32)
        out_c = buffer[:, :n]
        if start is not None:
            out_c.copy_(start)
        extra = dict(settings)
        if extra.pop("keep_before", False):
            extra["before"] = before
        gemm(isa, threads, a, b, out_c, compute, accumulate=accumulate, row_sum_a=sums, **extra)
        assert (buffer[:, n:] == 7.0).all(), "written past the end of a row"
        results.append({"c": out_c.clone(), "before": before[:, :n].clone(), "row_sum": sums})
    for other in results[1:]:
        for name, tensor in results[0].items():
            assert torch.equal(tensor, other[name]), f"{name} depends on the number of threads"
    return results[0]


@functools.cache
def shapes() -> list[tuple[int, int, int]]:
    """Return every pair of edges in two dimensions, with the third dimension running through them."""
    count = len(EDGES)
    return [
        (EDGES[i], EDGES[j], EDGES[(i + 3 * j) % count])
        for i, j in itertools.product(range(count), repeat=2)
        if (i + j) % 3 == 0
    ]


@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(str(x).removeprefix("torch.") for x in types))
def test_products_of_edge_shapes_in_all_layouts_equal_float64(isa, types):
    a_type, b_type, c_type, compute = types
    for number, (m, n, k) in enumerate(shapes()):
        a_layout, b_layout = LAYOUTS[number % len(LAYOUTS)]
        a, b = matrix(m, k, a_type, a_layout, seed=number), matrix(k, n, b_type, b_layout, seed=number + 1)
        # Explicit cuts force packing, even for few rows or depths.
        cuts = {"row_cuts": 1} if number // len(LAYOUTS) % 2 else {}
        got = on_each_number_of_threads(isa, a, b, c_type, compute, **cuts)
        check(got["c"], *product(a, b, compute))
        unit = ROUND[got["row_sum"].dtype]
        check(got["row_sum"], a.double().sum(1), (k + 2) * unit * a.double().abs().sum(1))


@pytest.mark.parametrize(("a_layout", "b_layout"), LAYOUTS)
@pytest.mark.parametrize("compute", [F32, BF16])
def test_products_of_several_blocks_equal_float64(isa, compute, a_layout, b_layout):
    """Cut rows, columns and depth by the default rule, and by blocks that do not divide them."""
    m, n, k = 211, 403, 1301
    a, b = matrix(m, k, compute, a_layout, seed=1), matrix(k, n, compute, b_layout, seed=2)
    exact, bound = product(a, b, compute)
    for blocking in ({}, {"mc": 40, "nc": 100, "kc": 77}, {"mc": 1, "nc": 1, "kc": 1000}):
        check(on_each_number_of_threads(isa, a, b, F32, compute, **blocking)["c"], exact, bound)


@pytest.mark.parametrize("compute", [F32, BF16, F64])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 50, 40), (1, 7, 3), (70, 300, 900)])
def test_accumulation_adds_to_the_existing_result(isa, compute, m, n, k):
    a, b = matrix(m, k, compute, "columns", seed=1), matrix(k, n, compute, "rows", seed=2)
    start = torch.randn(m, n, dtype=F64).to(F64 if compute == F64 else F32)
    exact, bound = product(a, b, compute)
    unit = ROUND[start.dtype]
    got = on_each_number_of_threads(isa, a, b, start.dtype, compute, accumulate=1, start=start)
    check(got["c"], exact + start.double(), bound + (k + 2) * unit * start.double().abs())


def gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    "terms", [t for r in range(5) for t in itertools.combinations(("bias", "gelu", "gate", "residual"), r)]
)
@pytest.mark.parametrize(
    ("c_type", "other", "compute"), [(F32, F32, F32), (BF16, F32, BF16), (F32, BF16, BF16), (F64,) * 3]
)
def test_epilogue_combinations_equal_float64(isa, terms, c_type, other, compute):
    (m, n, k), rows_per_gate, ldc = (37, 53, 20), 8, 53 + 3
    a, b = matrix(m, k, compute, "rows", seed=1), matrix(k, n, compute, "columns", seed=2)
    exact, bound = product(a, b, compute)
    unit = ROUND[F64 if compute == F64 else F32]
    settings: dict[str, Any] = {"keep_before": True}
    if "bias" in terms:
        settings["bias"] = torch.randn(n).to(other)
        exact = exact + settings["bias"].double()
        bound = bound + unit * exact.abs()
    exact_before, bound_before = exact, bound
    if "gelu" in terms:
        settings["gelu"] = 1
        exact, bound = gelu(exact), 1.13 * bound + GELU_ERROR[c_type] * (exact.abs() + bound)  # 1.13 > |gelu'|
    if "gate" in terms:
        settings.update(gate=torch.randn(-(-m // rows_per_gate), n + 1).to(other), rows_per_gate=rows_per_gate)
        gate = settings["gate"][:, :n].double().repeat_interleave(rows_per_gate, 0)[:m]
        exact, bound = exact * gate, bound * gate.abs() + unit * (exact * gate).abs()
    if "residual" in terms:
        settings["residual"] = torch.randn(m, ldc).to(other)
        exact = exact + settings["residual"][:, :n].double()
        bound = bound + 2 * unit * exact.abs()
    got = on_each_number_of_threads(isa, a, b, c_type, compute, **settings)
    check(got["c"], exact, bound)
    check(got["before"], exact_before, bound_before)


@pytest.mark.parametrize("compute", [F32, BF16, F64])
def test_result_is_multiplied_by_the_gelu_gradient(isa, compute):
    m, n, k = 37, 53, 20
    a, b = matrix(m, k, compute, "rows", seed=1), matrix(k, n, compute, "rows", seed=2)
    inputs = (2 * torch.randn(m, n + 3)).to(compute)
    points = inputs[:, :n].double().clone().requires_grad_()
    (slope,) = torch.autograd.grad(gelu(points).sum(), points)
    exact, bound = product(a, b, compute)
    got = on_each_number_of_threads(isa, a, b, compute, compute, gelu_gradient_at=inputs)
    check(
        got["c"], exact * slope, bound * slope.abs() + GELU_ERROR[compute] * exact.abs() * (1 + points.detach().abs())
    )


@pytest.mark.parametrize("c_type", [F32, BF16])
def test_zero_depth_returns_the_epilogue_of_zeros(isa, c_type):
    a, b, bias = torch.empty(5, 0), torch.empty(0, 19), torch.randn(19)
    got = on_each_number_of_threads(isa, a, b, c_type, F32, bias=bias, gelu=1)
    check(got["c"], gelu(bias.double()).expand(5, 19), GELU_ERROR[c_type] * bias.double().abs().expand(5, 19))
    assert (got["row_sum"] == 0).all()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), torch.finfo(F32).max])
@pytest.mark.parametrize("compute", [F32, BF16])
@pytest.mark.parametrize("b_layout", ["rows", "columns"])
@pytest.mark.parametrize("rows", [7, 20])  # few rows are not packed
def test_special_values_stay_in_the_affected_row_and_column(isa, rows, b_layout, compute, value):
    a, b = torch.ones(rows, 40), matrix(40, 70, F32, b_layout, seed=1).abs() + 1
    a[3, 5], b[20, 60] = value, value
    c = torch.empty(rows, 70)
    gemm(isa, 2, a, b, c, compute)
    exact_a, exact_b = (x.to(BF16).float() if compute == BF16 else x for x in (a, b))
    expected = exact_a @ exact_b
    assert torch.equal(torch.isnan(c), torch.isnan(expected))
    assert torch.equal(torch.isinf(c), torch.isinf(expected))


@pytest.mark.parametrize(
    "changes",
    [
        {"m": -1},
        {"a_data": None},
        {"c_column_stride": 2},
        {"a_row_stride": 2, "a_column_stride": 2},
        {"compute": 7},
        {"b_type": 2},
        {"accumulate": 1, "gelu": 1},
        {"accumulate": 1, "c_type": 1},
        {"gate": 64, "rows_per_gate": 0},
        {"kc": -1},
        {"row_cuts": 3, "column_cuts": 3},
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected_without_writing(isa, changes):
    a, b, c = torch.zeros(4, 4), torch.zeros(4, 4), torch.full((4, 4), 7.0)
    x = arguments(a, b, c, F32)
    for name, value in changes.items():
        setattr(x, name, value)
    with pytest.raises(ValueError, match="hc_gemm"):
        native.library().hc_gemm(native.context(isa=isa, num_threads=2), ctypes.byref(x))
    assert (c == 7.0).all()


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(("a_type", "b_type", "c_type", "compute"), TYPES)
def test_packed_operand_matches_the_unpacked_operand_bitwise(isa, a_type, b_type, c_type, compute, layout):
    """Cover few and many rows, a tile and a remainder of columns, and an odd depth in several blocks, packed for one
    number of rows.

    The packed operand does not serve a product of another kernel. With AMX, this is an fp32 product that is too small
    for bf16 parts.
    """
    for n, k in ((97, 41), (200, 300), (49, 1501)):
        b, other = (matrix(k, n, b_type, layout, seed=seed) for seed in (2, 3))
        packed = pack(isa, matrix(130, k, a_type, "rows", seed=1), b, compute)
        for m in (40, 65, 130, 400):
            a, bias = matrix(m, k, a_type, "rows", seed=m), torch.randn(n, dtype=F64 if compute == F64 else F32)
            is_served = not (isa == "amxfp32" and compute == F32 and m < 64 <= min(n, k))
            for threads in THREADS:
                expected, got, control = (torch.empty(m, n, dtype=c_type) for _ in range(3))
                gemm(isa, threads, a, b, expected, compute, bias=bias)
                gemm(isa, threads, a, other, got, compute, bias=bias, packed_b=packed)
                gemm(isa, threads, a, other, control, compute, bias=bias)
                assert torch.equal(got, expected if is_served else control), (m, n, k, threads)
                assert not torch.equal(expected, control)
    c = torch.empty(130, 49, dtype=c_type)
    a = matrix(130, 40, a_type, "rows", seed=1)
    with pytest.raises(ValueError, match="hc_gemm"):  # packed for another shape
        gemm(isa, 1, a, matrix(40, 49, b_type, layout, seed=2), c, compute, packed_b=packed)
    with pytest.raises(ValueError, match="hc_gemm"):  # not a packed operand
        gemm(isa, 1, a, matrix(40, 49, b_type, layout, seed=2), c, compute, packed_b=torch.zeros(1000))


def pack(isa: str, a: Tensor, b: Tensor, compute: torch.dtype) -> Tensor:
    """Return b as packed for products with a's number of rows. Checks that bytes around it are unchanged."""
    num_bytes, handle = ctypes.c_int64(), native.library()
    c = torch.empty(a.shape[0], b.shape[1], dtype=F64 if compute == F64 else F32)
    x = arguments(a, b, c, compute)
    context = native.context(isa=isa, num_threads=3)
    handle.hc_gemm_pack_bytes(context, x, ctypes.byref(num_bytes))
    buffer = torch.full((num_bytes.value + 128,), 7, dtype=torch.uint8)
    start = -buffer.data_ptr() % 64
    handle.hc_gemm_pack(context, x, buffer.data_ptr() + start)
    assert (buffer[start + num_bytes.value :] == 7).all()
    assert (buffer[:start] == 7).all()
    return buffer[start : start + num_bytes.value]


def test_products_without_packing_report_zero_bytes_and_reject_packing(isa):
    """Products with few rows read B in place, and empty products read nothing."""
    handle, num_bytes, b = native.library(), ctypes.c_int64(-1), matrix(40, 50, F32, "columns", seed=1)
    for m, n, k in ((1, 50, 40), (100, 0, 40), (100, 50, 0)):
        x = native.GemmArguments(m=m, n=n, k=k, b_data=b.data_ptr(), b_row_stride=1, b_column_stride=43)
        for name in ("a", "c"):
            setattr(x, f"{name}_data", b.data_ptr())
            setattr(x, f"{name}_row_stride", 43)
            setattr(x, f"{name}_column_stride", 1)
        handle.hc_gemm_pack_bytes(native.context(isa=isa), x, ctypes.byref(num_bytes))
        assert num_bytes.value == 0
        with pytest.raises(ValueError, match="hc_gemm_pack"):
            handle.hc_gemm_pack(native.context(isa=isa), x, torch.empty(64).data_ptr() // 64 * 64)
