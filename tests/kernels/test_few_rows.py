"""Products with few rows or little depth, which are not packed, against float64.

Shapes are around vectors, fours and eights, in every layout and type, with the same bits for 1, 2 and 3 threads.

Legend: C (m, n) = A (m, k) B (k, n).
"""

import itertools

import pytest
import torch

from dithc.engine import native
from tests.kernels.isas import newest_and_alternates
from tests.kernels.test_gemm import BF16, F32, ISAS, ROUND, check, gemm, matrix, on_each_number_of_threads, product

pytestmark = pytest.mark.skipif(not ISAS, reason=f"C kernels: {native.load_library().reason}")
TYPES = [(F32, F32, F32, F32), (F32, BF16, F32, BF16), (BF16, F32, BF16, BF16), (BF16, BF16, BF16, F32)]
# Threads share complete lines of columns, starting at 8 Ki elements of the large matrix.
WIDTHS = (515, 1, 130, 16, 65, 15, 64, 17, 63, 300)


@pytest.fixture(params=newest_and_alternates(ISAS))
def isa(request):
    return request.param


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("b_layout", ["rows", "columns"])
def test_products_with_few_rows_equal_float64(isa, types, b_layout):
    a_type, b_type, c_type, compute = types
    shapes = [(1, 200), (3, 7), (4, 96), (5, 129), (8, 8), (15, 33), (16, 100), (16, 1100), (29, 1024), (32, 2050)]
    for (m, k), n in zip(shapes, WIDTHS, strict=True):
        a, b = matrix(m, k, a_type, "columns" if m == 5 else "rows", seed=m), matrix(k, n, b_type, b_layout, seed=n)
        settings = {"bias": torch.randn(n).to(b_type)} if n % 2 else {}
        exact, bound = product(a, b, compute)
        if settings:
            exact = exact + settings["bias"].double()
            bound = bound + ROUND[F32] * exact.abs()
        check(on_each_number_of_threads(isa, a, b, c_type, compute, **settings)["c"], exact, bound)


@pytest.mark.parametrize("types", [t for t in TYPES if t[2] == F32] + [(BF16, BF16, F32, BF16)], ids=str)
@pytest.mark.parametrize("accumulate", [0, 1])
def test_products_with_small_depth_equal_float64(isa, types, accumulate):
    a_type, b_type, _, compute = types
    for (m, k), n in zip(itertools.cycle([(17, 1), (67, 4), (130, 15), (258, 32)]), WIDTHS):
        a, b = matrix(m, k, a_type, "columns", seed=m), matrix(k, n, b_type, "rows", seed=n)
        start = torch.randn(m, n)
        exact, bound = product(a, b, compute)
        exact = exact + accumulate * start.double()
        bound = bound + 2 * ROUND[F32] * (exact.abs() + start.double().abs())
        got = on_each_number_of_threads(isa, a, b, F32, compute, accumulate=accumulate, start=start)
        check(got["c"], exact, bound)
        sums = a.double().sum(1)
        check(got["row_sum"], sums, (k + 2) * ROUND[F32] * a.double().abs().sum(1))


@pytest.mark.slow
def test_large_result_stored_past_the_caches_equals_float64(isa):
    """24 MB exceed the caches of one or two cores. Rows that start between vectors use ordinary stores."""
    a, b = matrix(6144, 4, F32, "columns", seed=1), matrix(4, 1025, F32, "rows", seed=2)
    for n in (1024, 1025):
        exact, bound = product(a, b[:, :n], F32)
        for threads in (1, 2):
            c = torch.full((6144, n), 7.0)
            gemm(isa, threads, a, b[:, :n], c, F32)
            check(c, exact, bound)


@pytest.mark.parametrize("c_type", [F32, BF16])
@pytest.mark.parametrize("b_layout", ["rows", "columns"])
def test_epilogue_equals_float64_if_the_residual_is_overwritten(isa, c_type, b_layout):
    m, n, k = 6, 300, 90
    a, b = matrix(m, k, F32, "rows", seed=1), matrix(k, n, F32, b_layout, seed=2)
    start, bias = torch.randn(m, n).to(c_type), torch.randn(n)
    exact, bound = product(a, b, F32)
    exact = exact + bias.double() + start.double()
    bound = bound + 4 * ROUND[F32] * (exact.abs() + bias.double().abs() + start.double().abs())
    results = []
    for threads in (1, 2, 3):
        c = start.clone()
        gemm(isa, threads, a, b, c, F32, bias=bias, residual=c)
        check(c, exact, bound)
        results.append(c)
    assert all(torch.equal(results[0], other) for other in results[1:])
