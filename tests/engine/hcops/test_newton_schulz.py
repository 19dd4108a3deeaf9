"""Newton-Schulz products against the polynomial of singular values, in float64 by SVD."""

import math

import pytest
import torch

from dithc.engine import hcops
from dithc.engine.hcops.optimizer import COEFFICIENTS, MIN_NORM

BAND = (0.68, 1.21)  # final range of singular values that began above 0.0015
SHAPES = [(32, 32), (48, 160), (160, 48), (1, 9), (9, 1), (1, 1), (65, 67)]


def svd_map(matrix: torch.Tensor, iterations: int) -> torch.Tensor:
    """Apply the same map to the singular values of (R, C) in float64."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / matrix.double().norm().clamp(min=MIN_NORM)
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_are_mapped_and_vectors_kept(backend, shape, use_backend):
    use_backend(backend)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    # Each iteration rounds 3 products with dot products of at most 160 terms. Further iterations amplify the error by
    # 3.4445 for small singular values, and by less than 1 otherwise. Random matrices have few small singular values.
    tolerance = 2**-24 * 160 * 3 * COEFFICIENTS[0] ** 3
    for iterations in (1, 2, 5):
        found = hcops.optimizer.orthogonalize(matrix, iterations=iterations)
        assert found.dtype is torch.float32
        assert found.shape == matrix.shape
        assert distance(found, svd_map(matrix, iterations)) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 256), (256, 64), (96, 128)], ids=str)
def test_singular_values_end_in_the_band_for_any_scale(shape, dtype):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    slack = 0.0 if dtype is torch.float32 else 3 * 2**-8 * COEFFICIENTS[0]  # the last iteration's three products
    for size in (1e-6, 1.0, 1e15):
        found = hcops.optimizer.orthogonalize(size * matrix, dtype=dtype)
        assert found.dtype is dtype
        values = torch.linalg.svdvals(found.double())
        assert values.min() > BAND[0] - slack
        assert values.max() < BAND[1] + slack
        assert distance(found, svd_map(matrix, 5)) < (1e-4 if dtype is torch.float32 else 0.1)


def test_low_rank_matrix_keeps_small_singular_values_small():
    draws = torch.Generator().manual_seed(3)
    matrix = torch.randn(40, 3, generator=draws) @ torch.randn(3, 60, generator=draws)
    values = torch.linalg.svdvals(hcops.optimizer.orthogonalize(matrix).double())
    assert values[:3].min() > BAND[0]
    assert values[3:].max() < 2**-24 * 40 * COEFFICIENTS[0] ** 5


def test_zeros_stay_zero_and_nan_stays_nan():
    assert not hcops.optimizer.orthogonalize(torch.zeros(4, 6)).any()
    tiny = hcops.optimizer.orthogonalize(torch.full((4, 6), 1e-30))
    assert tiny.isfinite().all()
    assert 0 < tiny.max() < 1e-20
    assert hcops.optimizer.orthogonalize(torch.full((4, 6), math.nan)).isnan().all()


def test_input_is_unchanged_and_output_has_no_graph():
    matrix = torch.randn(8, 4, requires_grad=True)
    before = matrix.detach().clone()
    found = hcops.optimizer.orthogonalize(matrix)
    assert torch.equal(matrix, before)
    assert not found.requires_grad
