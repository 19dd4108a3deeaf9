"""Tests of the stationary covariance against dense matrices and fields of known covariance."""

import math

import numpy as np
import torch
from torch import Tensor

from dithc.diffusion.restoration import RadialCovariance

BASIS = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
LAGS = torch.arange(8, dtype=torch.float64)
RADIAL = torch.stack([torch.exp(-((LAGS / 2) ** 2)), 0.3 * torch.exp(-LAGS / 2)]) * (1 - LAGS / 8) ** 2
KNOWN = RadialCovariance(torch.tensor([1.0, 2.0]).double(), BASIS, RADIAL, torch.tensor([0.0, 0.1]).double())


def fields(count: int, side: int) -> Tensor:
    """Return normal fields (count, 2, side, side) of the known covariance, cut from a torus."""
    spectrum = KNOWN.spectrum((side, side))
    torus = spectrum.shape[1], 2 * (spectrum.shape[2] - 1)
    noise = torch.randn(count, 2, *torus, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    waves = torch.fft.rfft2(noise) * spectrum.sqrt()
    components = torch.fft.irfft2(waves, s=torus)[..., :side, :side]
    return torch.einsum("cd,ndhw->nchw", BASIS, components) + KNOWN.mean[:, None, None]


def test_product_equals_the_dense_matrix_without_correlation_across_borders() -> None:
    shape = (2, 9, 12)
    rows, columns = torch.meshgrid(torch.arange(9), torch.arange(12), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    distance = torch.cdist(places, places).numpy()
    dense = np.zeros((2, 108, 2, 108))
    for component in range(2):
        space = np.interp(distance, np.arange(9), np.append(RADIAL[component].numpy(), 0)) + float(
            KNOWN.offset[component]
        )
        bands = np.outer(BASIS[:, component].numpy(), BASIS[:, component].numpy())
        dense += bands[:, None, :, None] * space[None, :, None]
    x = torch.randn(2, *shape, dtype=torch.float64)
    expected = x.flatten(1) @ torch.from_numpy(dense.reshape(216, 216))
    torch.testing.assert_close(KNOWN.apply(x).flatten(1), expected, rtol=0, atol=0.02)


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


def test_state_restores_the_same_covariance() -> None:
    x = torch.randn(1, 2, 16, 16)
    assert torch.equal(RadialCovariance.of_state(KNOWN.state()).apply(x), KNOWN.apply(x))


def test_single_band_and_constant_tiles_have_a_finite_positive_spectrum() -> None:
    found = RadialCovariance.of(np.full((3, 1, 8, 8), 0.5, np.float32))
    assert found.mean.tolist() == [0.5]
    assert bool((found.spectrum((16, 16)) >= 0).all())
