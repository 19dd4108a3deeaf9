"""Measures of images equal their definitions."""

import numpy as np
import pytest

from dithc.core.image_quality import seam_ratio, spectral_angles, structural_similarity


def test_structural_similarity_equals_the_definition_at_each_window() -> None:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(9, 10))
    y = x + 0.3 * draws.normal(size=x.shape)
    values = []
    for top in range(3):
        for left in range(4):
            p, q = (image[top : top + 7, left : left + 7].ravel() for image in (x, y))
            (var_p, both), (_, var_q) = np.cov(p, q)
            c1, c2 = 0.02**2, 0.06**2
            upper = (2 * p.mean() * q.mean() + c1) * (2 * both + c2)
            values.append(upper / ((p.mean() ** 2 + q.mean() ** 2 + c1) * (var_p + var_q + c2)))
    found = structural_similarity(x, y, data_range=2.0)
    np.testing.assert_allclose(found, np.reshape(values, (3, 4)), rtol=1e-9)


def test_seam_ratio_measures_only_window_borders() -> None:
    x = np.tile(np.arange(64.0), (2, 64, 1))
    assert seam_ratio(x + x.swapaxes(1, 2), [0, 32], [0, 32], window=(32, 32)) == pytest.approx(1.0)
    x[:, :, 32:] += 4
    x = x + x.swapaxes(1, 2)
    assert seam_ratio(x, [0, 32], [0, 32], window=(32, 32)) == pytest.approx(5.0)
    assert seam_ratio(x, [0, 16], [0, 16], window=(48, 48)) < 1.0
    assert seam_ratio(np.where(np.arange(64) < 40, x, np.nan), [32], [32], window=(0, 0)) == pytest.approx(5.0)
    assert seam_ratio(x, [0], [0], window=(64, 64)) == 1.0
    assert seam_ratio(np.ones((1, 64, 64)), [0, 32], [0], window=(32, 64)) == 1.0


def test_spectral_angles_are_accurate_for_small_angles_and_undefined_for_black() -> None:
    angles = np.array([0.0, 1e-6, 30.0, 180.0])
    a = np.tile([[2.0], [0.0]], 4)
    b = 3 * np.stack([np.cos(np.deg2rad(angles)), np.sin(np.deg2rad(angles))])
    np.testing.assert_allclose(spectral_angles(a, b, axis=0), angles, rtol=1e-9, atol=1e-14)
    assert np.isnan(spectral_angles(np.zeros(3), np.ones(3), axis=0))
