"""Tests of observation operators against their definition in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion.cosines import cosines
from dithc.diffusion.restoration import BandGroups, LinearOperator, Resampling, Selection

SHAPE = (3, 13, 10)
IMAGES = torch.eye(math.prod(SHAPE), dtype=torch.float64).reshape(-1, *SHAPE)


def random_mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.6


OPERATORS: dict[str, LinearOperator] = {
    "mask": Selection(random_mask(*SHAPE)),
    "mean": Resampling(SHAPE, 3),
    "blur": Resampling(SHAPE, 2, mtf=0.3, valid=random_mask(3, 6, 5)),
    "groups": BandGroups(SHAPE, {(0, 2): Selection(random_mask(2, 13, 10)), (1,): Resampling((1, 13, 10), 4, mtf=0.2)}),
    "nested": BandGroups(SHAPE, {(2, 0): BandGroups((2, 13, 10), {(1,): Selection(random_mask(1, 13, 10))})}),
}


@pytest.mark.parametrize("name", list(OPERATORS))
def test_adjoint_and_row_norms_match_the_matrix(name: str) -> None:
    operator, generator = OPERATORS[name], torch.Generator().manual_seed(1)
    x = torch.randn(2, *SHAPE, generator=generator, dtype=torch.float64)
    y = torch.randn(2, operator.size, generator=generator, dtype=torch.float64)
    product = (operator.apply(x) * y).sum()
    torch.testing.assert_close((x * operator.adjoint(y)).sum(), product, rtol=1e-12, atol=1e-12)
    matrix = operator.apply(IMAGES).T  # (M, pixels)
    torch.testing.assert_close(operator.adjoint(torch.eye(operator.size, dtype=torch.float64)).flatten(1), matrix)
    torch.testing.assert_close(operator.row_norms(), matrix.square().sum(1))
    torch.testing.assert_close(operator.of_cosines(cosines(x)), operator.apply(x))
    torch.testing.assert_close(operator.adjoint_cosines(y), cosines(operator.adjoint(y)))
    torch.testing.assert_close(matrix.sum(1), torch.ones(operator.size, dtype=torch.float64))


def test_block_means_equal_reshaped_means() -> None:
    x = torch.randn(2, *SHAPE, dtype=torch.float64)
    expected = x[:, :, :12, :9].reshape(2, 3, 4, 3, 3, 3).mean((3, 5)).flatten(1)  # the rest is unobserved
    torch.testing.assert_close(OPERATORS["mean"].apply(x), expected)


@pytest.mark.parametrize(("factor", "mtf"), [(2, 0.3), (3, 0.25), (6, 0.1)])
def test_sensor_blur_has_its_gain_at_the_nyquist_frequency(factor: int, mtf: float) -> None:
    """Observe waves of the coarse grid's Nyquist frequency, which alternate between coarse pixels."""
    side = 24 * factor
    wave = np.cos(math.pi * (np.arange(side) - (factor - 1) / 2) / factor)
    operator = Resampling((1, side, side), factor, mtf=mtf)
    seen = operator.apply(torch.from_numpy(np.broadcast_to(wave, (1, 1, side, side)).copy())).reshape(24, 24)
    expected = mtf * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(8)
    torch.testing.assert_close(seen[12, 4:20], expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", list(OPERATORS))
def test_gains_are_the_spectrum_below_the_nyquist_frequency(name: str) -> None:
    """Compare with the energy of a cosine far below the Nyquist frequency, observed by all pixels of a large image."""
    operator = {"mean": Resampling((1, 48, 48), 3), "blur": Resampling((1, 48, 48), 2, mtf=0.3)}.get(name)
    if operator is None:
        operator = Selection(torch.ones(1, 48, 48, dtype=torch.bool))
    gains = operator.gains()  # (1, 48, 48)
    wave = torch.cos(math.pi * 6 * (torch.arange(48, dtype=torch.float64) + 0.5) / 48).expand(1, 1, 48, 48)
    ratio = operator.apply(wave).square().sum() / wave.square().sum()
    torch.testing.assert_close(gains[0, 0, 6] ** 2, ratio, rtol=0.02, atol=0)


def test_invalid_factors_modulations_and_shapes_are_rejected() -> None:
    with pytest.raises(UserError, match="factor of a coarse grid"):
        Resampling(SHAPE, 11)
    with pytest.raises(UserError, match="modulation"):
        Resampling(SHAPE, 2, mtf=1.0)
    with pytest.raises(UserError, match=r"shape of bands \(0, 1\)"):
        BandGroups(SHAPE, {(0, 1): Selection(random_mask(*SHAPE))})
