"""Baselines fill known images exactly; cloud masks keep their share; the regression approaches a known expectation."""

import numpy as np
import pytest
import torch

from dithc.core.logging import UserError
from dithc.evaluate.restoration import cloud_masks, train_regression
from dithc.evaluate.restoration.baselines import date_fill, mean_fill, nearest_fill
from dithc.evaluate.restoration.regression import RegressionUNet

X = np.arange(24.0).reshape(2, 3, 4)


def test_nearest_fill_copies_the_closest_observed_pixel() -> None:
    draws = np.random.default_rng(0)
    x, valid = draws.normal(size=(2, 15, 11)), draws.random((2, 15, 11)) < 0.05
    valid[0, 3, 4] = valid[1, 7, 7] = True
    for band, mask, found in zip(x, valid, nearest_fill(x, valid), strict=True):
        rows, columns = np.nonzero(mask)
        for place in np.ndindex(band.shape):
            distances = np.hypot(rows - place[0], columns - place[1])
            nearest = distances == distances.min()
            assert found[place] in band[rows[nearest], columns[nearest]]
    np.testing.assert_array_equal(nearest_fill(x, valid[0])[0], nearest_fill(x, valid)[0])


def test_fills_keep_observed_values_and_mark_bands_without_any() -> None:
    valid = np.ones((2, 3, 4), bool)
    valid[0, 1:], valid[1] = False, False
    assert np.isnan(nearest_fill(X, valid)[1]).all()
    assert np.isnan(mean_fill(X, valid)[1]).all()
    np.testing.assert_array_equal(nearest_fill(X, valid)[0], np.tile(X[0, 0], (3, 1)))
    np.testing.assert_array_equal(mean_fill(X, valid)[0], [X[0, 0], [1.5] * 4, [1.5] * 4])


def test_date_fill_uses_the_nearest_clear_date() -> None:
    valid = np.array([True, False, False, False]) & np.ones((3, 1), bool)
    clear = np.array([[False, True, False, False], [False, True, True, False]])[:, None] & np.ones((3, 1), bool)
    found = date_fill(X, valid, np.stack([X + 100, X + 200]), clear)
    np.testing.assert_array_equal(found, X + np.array([0, 100, 200, 199]))  # the last column copies its neighbor


def test_cloud_masks_have_the_share_and_depend_on_seed_and_number_only() -> None:
    masks = np.zeros((4, 30, 40), bool)
    masks[1], masks[2, :, 20:], masks[3, :10] = True, True, True
    found = cloud_masks(masks, (10, 16), (0.2, 0.6), 5, range(200))
    shares = found.mean(axis=(1, 2))
    assert shares.min() >= 0.2
    assert shares.max() <= 0.6
    assert len(np.unique(found, axis=0)) > 10
    np.testing.assert_array_equal(cloud_masks(masks, (10, 16), (0.2, 0.6), 5, [7, 3]), found[[7, 3]])
    assert (cloud_masks(masks, (10, 16), (0.2, 0.6), 6, range(200)) != found).any()
    # The upper edge of mask 3 occurs at the top and, mirrored, at the bottom.
    counts = [(found[:, 0, :].all(1)).sum(), (found[:, -1, :].all(1)).sum()]
    assert min(counts) > 0.2 * sum(counts)
    for size, share in (((31, 16), (0.2, 0.6)), ((10, 16), (0.97, 0.99))):
        with pytest.raises(UserError, match="no matching crop"):
            cloud_masks(masks, size, share, 0, [0])


def test_windows_equal_a_prediction_of_the_complete_image() -> None:
    torch.manual_seed(0)
    net = RegressionUNet(2, width=4)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    draws = np.random.default_rng(0)
    x, valid = draws.normal(size=(2, 181, 150)).astype(np.float32), draws.random((181, 150)) < 0.5
    found, complete = net.fill(x, valid, window=40), net.fill(x, valid, window=400)
    np.testing.assert_allclose(found, complete, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[:, valid], x[:, valid])
    assert np.abs(found - x)[:, ~valid].max() > 0.1
    np.testing.assert_array_equal(net.fill(np.where(valid, x, np.nan), valid, window=400), complete)


def test_regression_learns_the_relation_of_bands_and_is_deterministic() -> None:
    """Band 2 is minus band 1 plus 1: a hidden band follows exactly, and its mean has an error of 1."""
    first = np.random.default_rng(1).normal(size=(64, 1, 1, 1)) * np.ones((8, 8))
    tiles = np.concatenate([first, 1 - first], axis=1)
    tiles[1::2, 1, :, :3] = np.nan  # unknown values are neither inputs nor targets

    def hide(numbers: range) -> np.ndarray:
        return np.broadcast_to(np.array([False, True])[:, None, None], (len(numbers), 2, 8, 8))

    nets = [train_regression(tiles, hide, seed=3, steps=5) for _ in range(2)]
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    found = train_regression(tiles, hide, seed=3, steps=80).fill(tiles[0], hide(range(1))[0] == 0)
    assert np.sqrt(np.mean((found[1] - tiles[0, 1]) ** 2)) < 0.3
