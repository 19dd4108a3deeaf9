"""The orthogonal factor by products is that of the polynomial of singular values, in float64 and by SVD."""

import math

import pytest
import torch

from dithc import hcops
from dithc.hcops.newton_schulz import COEFFICIENTS, LEAST_NORM
from dithc.log import UserError

BAND = (0.68, 1.21)  # in which singular values end that began above 0.0015
# The last three are cut where a product is its own transpose: into two runs of rows, three with a rest, four.
SHAPES = [(32, 32), (48, 160), (160, 48), (1, 9), (9, 1), (1, 1), (65, 67), (161, 170), (300, 259), (400, 384)]


def by_svd(matrix: torch.Tensor, iterations: int) -> torch.Tensor:
    """The same map on singular values alone: (R, C) -> (R, C), float64."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / matrix.double().norm().clamp(min=LEAST_NORM)
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def drawn(*shapes: tuple[int, int], seed: int = 1) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draws) for shape in shapes]


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
def test_singular_values_are_mapped_and_vectors_kept(backend, use_backend):
    use_backend(backend)
    matrices = drawn(*SHAPES)
    # Rounding of each of 3 products an iteration, of dot products of at most 400, grows by 3.4445 in each further one where
    # singular values are small, and by less than 1 where they are not; of random matrices few are.
    tolerance = 2**-24 * 400 * 3 * COEFFICIENTS[0] ** 3
    for iterations in (0, 1, 2, 5):
        found = hcops.optimizer.orthogonalise(matrices, iterations=iterations)
        for matrix, factor in zip(matrices, found, strict=True):
            assert factor.dtype is torch.float32
            assert factor.shape == matrix.shape
            assert factor.is_contiguous()
            assert distance(factor, by_svd(matrix, iterations)) < tolerance


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_end_in_the_band_whatever_the_size(dtype, backend, use_backend):
    use_backend(backend)
    slack = 0.0 if dtype is torch.float32 else 3 * 2**-8 * COEFFICIENTS[0]  # the last iteration's three products
    matrices = drawn((64, 256), (256, 64), (96, 128), (160, 200), seed=2)
    for size in (1e-6, 1.0, 1e15):
        found = hcops.optimizer.orthogonalise([size * matrix for matrix in matrices], dtype=dtype)
        for matrix, factor in zip(matrices, found, strict=True):
            assert factor.dtype is dtype
            values = torch.linalg.svdvals(factor.double())
            assert values.min() > BAND[0] - slack
            assert values.max() < BAND[1] + slack
            assert distance(factor, by_svd(matrix, 5)) < (1e-4 if dtype is torch.float32 else 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_are_the_same_for_any_number_of_threads_and_in_any_company(dtype, use_backend):
    """Of these the largest is made by all threads where there are several, and by one where it is in larger company."""
    use_backend("c")
    matrices = drawn((400, 384), (161, 170), (96, 33), (2, 40), (40, 2), (64, 64))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(hcops.optimizer.orthogonalise(matrices, dtype=dtype))
            found.append([hcops.optimizer.orthogonalise([matrix], dtype=dtype)[0] for matrix in matrices])
            found.append(hcops.optimizer.orthogonalise(matrices[::-1] * 3, dtype=dtype)[5::-1])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_a_matrix_of_low_rank_keeps_its_rank():
    draws = torch.Generator().manual_seed(3)
    matrix = torch.randn(40, 3, generator=draws) @ torch.randn(3, 60, generator=draws)
    values = torch.linalg.svdvals(hcops.optimizer.orthogonalise([matrix])[0].double())
    assert values[:3].min() > BAND[0]
    assert values[3:].max() < 2**-24 * 40 * COEFFICIENTS[0] ** 5


def test_nothing_stays_nothing_and_no_number_stays_none():
    zeros, small, none, empty = (
        torch.zeros(4, 6),
        torch.full((4, 6), 1e-30),
        torch.full((4, 6), math.nan),
        torch.ones(0, 3),
    )
    nothing, tiny, no_number, gone = hcops.optimizer.orthogonalise([zeros, small, none, empty])
    assert not nothing.any()
    assert tiny.isfinite().all()
    assert 0 < tiny.max() < 1e-20
    assert no_number.isnan().all()
    assert gone.shape == (0, 3)
    assert hcops.optimizer.orthogonalise([]) == []


def test_input_stays_as_it_is_and_no_graph_is_kept():
    matrix = torch.randn(8, 4, requires_grad=True)
    before = matrix.detach().clone()
    (found,) = hcops.optimizer.orthogonalise([matrix])
    assert torch.equal(matrix, before)
    assert not found.requires_grad


def test_matrices_with_gaps_are_taken_and_what_is_no_matrix_is_refused():
    wide = torch.randn(6, 20, generator=torch.Generator().manual_seed(4))
    (found,) = hcops.optimizer.orthogonalise([wide[:, ::2]])
    assert distance(found, by_svd(wide[:, ::2], 5)) < 1e-4
    with pytest.raises(UserError, match=r"matrices\[1\]"):
        hcops.optimizer.orthogonalise([wide, torch.ones(3)])
