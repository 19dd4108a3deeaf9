"""Tests of the stationary covariance against dense matrices and fields of known covariance."""

import math

import numpy as np
import pytest
import torch
from scipy.fft import dct, dctn
from torch import Tensor

from dithc.diffusion.cosines import cosines, inverse_cosines
from dithc.diffusion.restoration import RadialCovariance

BASIS = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
LAGS = torch.arange(8, dtype=torch.float64)
RADIAL = torch.stack([torch.exp(-((LAGS / 2) ** 2)), 0.3 * torch.exp(-LAGS / 2)]) * (1 - LAGS / 8) ** 2
KNOWN = RadialCovariance(torch.tensor([1.0, 2.0]).double(), BASIS, RADIAL, torch.tensor([0.0, 0.1]).double())


def dense(height: int, width: int) -> Tensor:
    """Return the covariance (2, pixels, pixels) of the components of an image."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    distance = torch.cdist(places, places).numpy()
    radial = [np.interp(distance, np.arange(9), np.append(component.numpy(), 0)) for component in RADIAL]
    return torch.from_numpy(np.stack(radial)) + KNOWN.offset[:, None, None]


def fields(count: int, side: int) -> Tensor:
    """Return normal fields (count, 2, side, side) of the known covariance."""
    root = torch.linalg.cholesky(dense(side, side) + 1e-9 * torch.eye(side**2))
    noise = torch.randn(count, 2, side**2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    components = torch.einsum("cpq,ncq->ncp", root, noise).reshape(count, 2, side, side)
    return torch.einsum("cd,ndhw->nchw", BASIS, components) + KNOWN.mean[:, None, None]


def product(covariance: RadialCovariance, x: Tensor) -> Tensor:
    size = x.shape[2], x.shape[3]
    return inverse_cosines(covariance.multiply(cosines(x), covariance.spectrum(size)))


@pytest.mark.parametrize("size", [(5, 128), (130, 7)])
def test_transforms_of_small_and_large_planes_match_scipy(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    truth = torch.from_numpy(dctn(x.double().numpy(), axes=(-2, -1), norm="ortho"))
    torch.testing.assert_close(cosines(x).double(), truth, rtol=0, atol=1e-5)
    torch.testing.assert_close(inverse_cosines(cosines(x)), x, rtol=0, atol=1e-5)


def test_product_keeps_the_variance_of_each_cosine_of_the_dense_matrix() -> None:
    height, width = 9, 12
    rows, columns = (torch.from_numpy(dct(np.eye(side), norm="ortho", axis=0)) for side in (height, width))
    waves = torch.kron(rows, columns)  # (108, 108)
    variances = (waves @ dense(height, width) @ waves.T).diagonal(dim1=1, dim2=2)  # (2, 108)
    x = torch.randn(2, 2, height, width, dtype=torch.float64)
    coefficients = torch.einsum("dc,pq,ncq->ndp", BASIS.T, waves, x.flatten(2)) * variances
    expected = torch.einsum("cd,qp,ndq->ncp", BASIS, waves, coefficients)
    torch.testing.assert_close(product(KNOWN, x).flatten(2), expected, rtol=0, atol=1e-4)  # `FLOOR`


def test_estimate_matches_the_covariance_of_the_fields_despite_invalid_pixels() -> None:
    tiles = fields(1500, 20)
    tiles[::2, :, 5:9, :7] = math.nan
    found = RadialCovariance.of(tiles.float().numpy())
    torch.testing.assert_close(found.mean, KNOWN.mean, rtol=0, atol=0.02)
    order = found.radial[:, 0].argsort(descending=True)
    torch.testing.assert_close((found.basis[:, order].T @ BASIS).abs(), torch.eye(2).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(found.offset[order], KNOWN.offset, rtol=0, atol=0.01)
    taper = (1 - LAGS / 20) ** 4 * (4 * LAGS / 20 + 1)
    torch.testing.assert_close(found.radial[order][:, :8], RADIAL * taper, rtol=0, atol=0.03)
    assert found.radial.shape == (2, 20)


def test_estimate_has_the_same_bits_for_any_number_of_threads() -> None:
    tiles, threads = torch.randn(32, 12, 64, 64, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(RadialCovariance.of(tiles).state())
    torch.set_num_threads(threads)
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_bounded_covariance_keeps_the_variance_and_ends() -> None:
    found = KNOWN.bounded()
    torch.testing.assert_close(found.radial[:, 0], KNOWN.radial[:, 0] + KNOWN.offset)
    assert found.radial.shape == (2, 16)
    assert found.offset.tolist() == [0, 0]
    assert bool((found.spectrum((40, 40)) >= 0).all())


def test_state_restores_the_same_covariance() -> None:
    x = torch.randn(1, 2, 16, 16)
    assert torch.equal(product(RadialCovariance.of_state(KNOWN.state()), x), product(KNOWN, x))


def test_single_band_and_constant_tiles_have_a_finite_positive_spectrum() -> None:
    found = RadialCovariance.of(np.full((3, 1, 8, 8), 0.5, np.float32))
    assert found.mean.tolist() == [0.5]
    assert bool((found.spectrum((16, 16)) >= 0).all())
