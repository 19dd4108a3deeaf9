"""fp32 products in bf16 parts (AMX) against float64: edges, layouts, epilogues, range, and values outside the range of
parts.

Legend: C (m, n) = A (m, k) B (k, n). Tolerances: hc_gemm in kernels/include/hcops.h.
"""

import itertools

import pytest
import torch
from torch import Tensor

from dithc import native
from tests.kernels.test_gemm import (
    BF16,
    F32,
    ISAS,
    LAYOUTS,
    check,
    gemm,
    matrix,
    on_each_number_of_threads,
    pack,
)

pytestmark = pytest.mark.skipif("amx" not in ISAS, reason="no AMX")
EXTREMES = {
    "inf": float("inf"),
    "nan": float("nan"),
    "largest": torch.finfo(torch.float32).max,
    "rounds up to inf": 3.3961776e38,
    "denormal": 1e-40,
}


def split_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    exact_a, exact_b, k = a.double(), b.double(), a.shape[1]
    lost = 2.0**-123 * k * (1 + float(exact_a.abs().max()) + float(exact_b.abs().max()))
    return exact_a @ exact_b, (6 * k + 8) * 2.0**-24 * (exact_a.abs() @ exact_b.abs()) + lost


def test_the_listing_names_it():
    assert ("gemm_f32_split", "amx") in native.kernels("amx")
    assert "gemm_f32_split" not in dict(native.kernels("avx512bf16"))


@pytest.mark.parametrize(("a_layout", "b_layout"), LAYOUTS)
@pytest.mark.parametrize("k", [64, 65, 97, 383, 384, 900])
def test_edges_in_all_layouts(a_layout, b_layout, k):
    for m, n in itertools.product((64, 65, 95, 97, 160), (64, 79, 81, 129)):
        a, b = matrix(m, k, F32, a_layout, seed=m), matrix(k, n, F32, b_layout, seed=n)
        got = on_each_number_of_threads("amx", a, b, F32, F32)
        check(got["c"], *split_product(a, b))
        check(got["row_sum"], a.double().sum(1), (k + 2) * 2.0**-24 * a.double().abs().sum(1))


@pytest.mark.parametrize(("a_type", "b_type"), [(BF16, F32), (F32, BF16)])
def test_mixed_types(a_type, b_type):
    a, b = matrix(100, 200, a_type, "columns", seed=1), matrix(200, 130, b_type, "rows", seed=2)
    check(on_each_number_of_threads("amx", a, b, F32, F32)["c"], *split_product(a, b))


@pytest.mark.parametrize("blocking", [{}, {"mc": 40, "nc": 100, "kc": 77}, {"mc": 1, "nc": 1, "kc": 1000}], ids=str)
def test_accumulation_in_several_blocks(blocking):
    a, b = matrix(211, 1301, F32, "columns", seed=1), matrix(1301, 403, F32, "rows", seed=2)
    start = torch.randn(211, 403)
    exact, bound = split_product(a, b)
    got = on_each_number_of_threads("amx", a, b, F32, F32, accumulate=1, start=start, **blocking)
    check(got["c"], exact + start.double(), bound + 40 * 2.0**-24 * start.double().abs())


def test_epilogue():
    a, b = matrix(100, 384, F32, "rows", seed=1), matrix(384, 130, F32, "columns", seed=2)
    bias, residual = torch.randn(130), torch.randn(100, 133)
    exact, bound = split_product(a, b)
    got = on_each_number_of_threads("amx", a, b, F32, F32, bias=bias, residual=residual, keep_before=True)
    exact = exact + bias.double()
    check(got["before"], exact, bound + 2.0**-24 * exact.abs())
    exact = exact + residual[:, :130].double()
    check(got["c"], exact, bound + 2.0**-22 * (exact.abs() + residual[:, :130].double().abs()))


@pytest.mark.parametrize(("low", "high"), [(-90, 60), (-40, 40), (-99, -98), (-80, -60), (50, 60), (80, 120)])
def test_wide_range(low, high):
    """In the widest range, single rows and columns are tiny and their small parts are lost."""
    generator = torch.Generator().manual_seed(1)

    def numbers(rows: int, columns: int) -> Tensor:
        exponents = torch.randint(low, high + 1, (rows, columns), generator=generator)
        return torch.ldexp(torch.randn(rows, columns, generator=generator), exponents)

    a, b = numbers(96, 130), numbers(130, 80)
    exact, bound = split_product(a, b)
    got = on_each_number_of_threads("amx", a, b, F32, F32)["c"]
    fits = exact.abs() + bound < 2.0**127
    check(got[fits], exact[fits], bound[fits])


@pytest.mark.parametrize("in_b", [False, True])
@pytest.mark.parametrize("accumulate", [0, 1])
@pytest.mark.parametrize("value", EXTREMES.values(), ids=EXTREMES.keys())
def test_values_that_parts_cannot_hold(value, accumulate, in_b):
    """Results outside the range equal the vector unit's bit for bit, and row sums are not counted twice."""
    a, b = torch.randn(100, 130), torch.randn(130, 90)
    (b if in_b else a)[40, 50] = value
    results = {}
    for isa in ("amx", "avx512bf16"):
        c, sums = torch.ones(100, 90), torch.ones(100)
        gemm(isa, 2, a, b, c, F32, accumulate=accumulate, row_sum_a=sums)
        results[isa] = c, sums
    (c, sums), (expected, expected_sums) = results.values()
    if value == EXTREMES["denormal"]:
        exact, bound = split_product(a, b)
        check(c, exact + accumulate, bound + 2.0**-22)
        return
    assert torch.equal(c.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(c.isnan(), expected.isnan())
    assert torch.equal(sums.nan_to_num(7), expected_sums.nan_to_num(7))


@pytest.mark.parametrize("scale", [0.0, 2.0**-120, 1e-42])
def test_operands_that_are_tiny_throughout(scale):
    a, b = torch.randn(96, 100) * scale, torch.randn(100, 96)
    c = torch.empty(96, 96)
    gemm("amx", 2, a, b, c, F32)
    exact = a.double() @ b.double()
    bound = 102 * 2.0**-24 * (a.double().abs() @ b.double().abs()) + 102 * 2.0**-149
    assert ((c.double() - exact).abs() <= bound).all()


def test_an_epilogue_over_what_it_reads_still_falls_back():
    a, b, residual = torch.randn(96, 100), torch.randn(100, 96), torch.randn(96, 96)
    a[3, 4] = float("inf")
    c, expected = residual.clone(), residual.clone()
    gemm("amx", 2, a, b, c, F32, residual=c)
    gemm("avx512bf16", 2, a, b, expected, F32, residual=expected)
    assert torch.equal(c.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("settings", [{"accumulate": 1}, {"residual": None}], ids=str)
@pytest.mark.parametrize("later", [float("inf"), float("nan"), 0.0])
def test_what_b_holds_after_it_was_packed_is_not_seen(later, settings):
    """This also holds for additions to C, for which the range of the operands is checked first."""
    a, b, start = matrix(96, 100, F32, "rows", seed=1), matrix(100, 90, F32, "columns", seed=2), torch.randn(96, 90)
    packed, c = pack("amx", a, b, F32), start.clone()
    exact, bound = split_product(a, b)
    b.fill_(later)
    gemm("amx", 2, a, b, c, F32, packed_b=packed, **{name: c if x is None else x for name, x in settings.items()})
    check(c, exact + start.double(), bound + 2.0**-22 * (exact.abs() + start.double().abs()))


@pytest.mark.parametrize("accumulate", [0, 1])
def test_a_packed_operand_out_of_range_is_read_again_where_it_was(accumulate):
    a, b, c = matrix(96, 100, F32, "rows", seed=1), matrix(100, 90, F32, "columns", seed=2), torch.ones(96, 90)
    kept = b[3, 4].clone()
    b[3, 4] = float("inf")
    packed = pack("amx", a, b, F32)
    b[3, 4] = kept
    exact, bound = split_product(a, b)
    gemm("amx", 2, a, b, c, F32, packed_b=packed, accumulate=accumulate)
    check(c, exact + accumulate, bound + 2.0**-22 * (1 + exact.abs()))
