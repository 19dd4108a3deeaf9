"""Landscapes are reproducible, and have the sizes, shares and spectra of their theme."""

import numpy as np
import pytest

from dithc.data.synthetic.cover import COUNTRYSIDE, THEMES, Cover
from dithc.data.synthetic.landscape import grow
from dithc.data.synthetic.noise import PixelGrid, band_pass, generator
from dithc.data.synthetic.spectra import reflectance

GRID = PixelGrid(96, 120, 5.0)


def test_band_pass_noise_has_the_requested_wavelength() -> None:
    grid = PixelGrid(256, 256, 2.0)
    power = np.abs(np.fft.fft2(band_pass(generator(2), grid, wavelength_m=32.0))) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(256, 2.0), np.fft.fftfreq(256, 2.0)))
    # The spectrum is log-normal around 1 / 32 along each direction; over the plane, where rings of higher frequency are
    # longer, its mean is exp(3 / 2 * width**2) = 1.20 times that.
    assert float((power * frequency).sum() / power.sum()) == pytest.approx(1.20 / 32, rel=0.1)


@pytest.mark.parametrize("theme", [COUNTRYSIDE, *THEMES], ids=lambda theme: theme.name)
def test_every_theme_produces_valid_reflectance_on_any_grid(theme) -> None:  # type: ignore[no-untyped-def]
    for shape in ((16, 16), (41, 64)):
        land = grow(generator(4), PixelGrid(*shape, 8.0), theme)
        assert land.cover.shape == shape
        image = reflectance(land, generator(5))
        assert image.shape == (13, *shape)
        assert np.isfinite(image).all()
        assert image.min() > -0.05
        assert image.max() < 1.0


def test_themes_contain_characteristic_land_cover() -> None:
    by_name = {theme.name: theme for theme in THEMES}
    grid = PixelGrid(128, 128, 4.0)

    def share(name: str, *classes: Cover) -> float:
        covers = (grow(generator(seed), grid, by_name[name]).cover for seed in range(3))
        return float(np.mean([np.isin(cover, classes).mean() for cover in covers]))

    assert 0.05 < share("river", Cover.WATER) < 0.6
    assert share("forest", Cover.BROADLEAF, Cover.CONIFER) > 0.8
    assert share("town", Cover.ROOF_TILE, Cover.ROOF_GRAY, Cover.ROOF_WHITE) > 0.12
    assert share("fields", Cover.WATER, Cover.ROOF_TILE) == 0
