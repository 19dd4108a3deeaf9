"""fp32 products in bf16 parts (AMX): values outside the range of parts, and packed operands.

`tile_cases.py` compares edges, layouts, epilogues and ranges with float64.

Legend: C (m, n) = A (m, k) B (k, n). Tolerances: hc_gemm in kernels/include/hcops.h.
"""

import pytest
import torch
from torch import Tensor

from dithc.engine.native import loading
from tests.kernels.test_gemm import F32, ISAS, check, gemm, matrix, pack

pytestmark = pytest.mark.skipif("amxfp32" not in ISAS, reason="no AMX")
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


def test_kernel_list_contains_split_gemm_only_with_amx():
    assert dict(loading.kernels_of("amxfp32"))["gemm_f32_split"] == "amxfp32"
    assert "gemm_f32_split" not in dict(loading.kernels_of("amx"))
    assert dict(loading.kernels_of("amx"))["gemm_bf16"] == dict(loading.kernels_of("amxfp32"))["gemm_bf16"] == "amx"


@pytest.mark.parametrize("in_b", [False, True])
@pytest.mark.parametrize("accumulate", [0, 1])
@pytest.mark.parametrize("value", EXTREMES.values(), ids=EXTREMES.keys())
def test_out_of_range_values_match_the_vector_unit(value, accumulate, in_b):
    """Results outside the range equal the vector unit's bit for bit, and row sums are not counted twice."""
    a, b = torch.randn(100, 130), torch.randn(130, 90)
    (b if in_b else a)[40, 50] = value
    results = {}
    for isa in ("amxfp32", "avx512bf16"):
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


def test_overwriting_epilogue_matches_the_vector_unit_for_infinite_input():
    a, b, residual = torch.randn(96, 100), torch.randn(100, 96), torch.randn(96, 96)
    a[3, 4] = float("inf")
    c, expected = residual.clone(), residual.clone()
    gemm("amxfp32", 2, a, b, c, F32, residual=c)
    gemm("avx512bf16", 2, a, b, expected, F32, residual=expected)
    assert torch.equal(c.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("settings", [{"accumulate": 1}, {"residual": None}], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0])
def test_changes_to_b_after_packing_are_ignored(value, settings):
    """This also holds for additions to C, for which the range of the operands is checked first."""
    a, b, start = matrix(96, 100, F32, "rows", seed=1), matrix(100, 90, F32, "columns", seed=2), torch.randn(96, 90)
    packed, c = pack("amxfp32", a, b, F32), start.clone()
    exact, bound = split_product(a, b)
    b.fill_(value)
    gemm("amxfp32", 2, a, b, c, F32, packed_b=packed, **{name: c if x is None else x for name, x in settings.items()})
    check(c, exact + start.double(), bound + 2.0**-22 * (exact.abs() + start.double().abs()))


@pytest.mark.parametrize("accumulate", [0, 1])
def test_out_of_range_packed_operand_is_reread_from_the_original(accumulate):
    a, b, c = matrix(96, 100, F32, "rows", seed=1), matrix(100, 90, F32, "columns", seed=2), torch.ones(96, 90)
    kept = b[3, 4].clone()
    b[3, 4] = float("inf")
    packed = pack("amxfp32", a, b, F32)
    b[3, 4] = kept
    exact, bound = split_product(a, b)
    gemm("amxfp32", 2, a, b, c, F32, packed_b=packed, accumulate=accumulate)
    check(c, exact + accumulate, bound + 2.0**-22 * (1 + exact.abs()))
