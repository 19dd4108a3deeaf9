"""Products of bf16 on x86: packing rounds as torch does, and every path to a result gives the same bits.

test_cases.py contains the bounds against float64 for all shapes and instruction sets. These tests cover features of
these kernels only: A read in place, sums rounded by the kernel, panels of both strides.
"""

import pytest
import torch
from torch import Tensor

from tests.kernels.isas import require_isa
from tests.kernels.test_gemm import gemm

ISAS = ("avx512bf16", "amxfp32")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return require_isa(request.param)


def product(
    a: Tensor,
    b: Tensor,
    isa: str,
    *,
    c_type: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    threads: int = 1,
) -> Tensor:
    """Multiply A (m, k) by B (k, n) with operands rounded to bf16."""
    c = torch.empty(a.shape[0], b.shape[1], dtype=c_type)
    gemm(isa, threads, a, b, c, torch.bfloat16, **({} if bias is None else {"bias": bias}))
    return c


def by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def any_normal_fp32(rows: int, columns: int) -> Tensor:
    """Return random bits, without denormals and numbers that round to inf."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (rows, columns), generator=generator).to(torch.int32)
    x = bits.view(torch.float32)
    return torch.where((x.abs() >= 2.0**-126) & (x.abs() < 2.0**127), x, torch.ones(()))


@pytest.mark.parametrize("transposed", [False, True])
def test_packing_rounds_as_torch_does(isa: str, transposed: bool) -> None:
    x = any_normal_fp32(200, 64)
    rounded = x.bfloat16().float()
    layout = by_columns if transposed else torch.Tensor.contiguous
    assert torch.equal(product(layout(x), torch.eye(64), isa), rounded)
    assert torch.equal(product(torch.eye(64), layout(x.t()), isa), rounded.t())


def test_denormals_count_as_zero(isa: str) -> None:
    """This holds for packed products. A product of a single row is not packed."""
    tiny = torch.tensor([1e-40, -1e-40, 2.0**-126]).repeat(16).reshape(48, 1) * torch.eye(48)
    expected = torch.tensor([0.0, 0.0, 2.0**-126]).repeat(16)
    assert torch.equal(product(tiny, torch.ones(48, 1), isa).flatten(), expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(64, 96, 64), (2080, 1184, 96), (48, 72, 1536), (464, 1200, 1536)])
def test_rows_in_place_match_packed_rows_bitwise(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    """The last shape has several chunks of columns, and blocks of rows for each."""
    m, n, k = shape
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).t()
    assert torch.equal(product(a, b, isa, threads=threads), product(by_columns(a), b, isa))
    assert torch.equal(product(a, b, isa)[: m - 1], product(a[: m - 1], b, isa, threads=threads))


@pytest.mark.parametrize("shape", [(33, 65, 40), (520, 130, 64), (300, 96, 2000)])
def test_bf16_result_equals_the_rounded_fp32_result(isa: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, bias = torch.randn(m, k).bfloat16(), torch.randn(k, n), torch.randn(n)
    exact = product(a, b, isa, bias=bias)
    assert torch.equal(product(a, b, isa, c_type=torch.bfloat16, bias=bias), exact.bfloat16())
