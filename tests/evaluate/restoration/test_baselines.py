"""Baselines fill known images exactly; the regression approaches a known expectation."""

from pathlib import Path

import numpy as np
import torch

from dithc.evaluate.restoration import Examples, Observed, date_fill, simple_fills, train_regression
from dithc.evaluate.restoration.baselines import mean_fill, nearest_fill

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
    found = date_fill(X, valid, [X + 100, X + 200], list(clear))
    np.testing.assert_array_equal(found, X + np.array([0, 100, 200, 199]))  # the last column copies its neighbor


def test_interpolations_of_observed_coarse_pixels_reproduce_a_ramp_and_ignore_gaps() -> None:
    rows, columns = np.mgrid[:40, :49] + 0.5
    ramp, gaps = np.stack([2 * rows - 3 * columns, columns]), np.zeros((40, 49), bool)
    gaps[18:22, 20:25] = True
    x = np.where(gaps, 100.0, ramp)
    seen = Observed(x=x, pixels=~gaps & np.array([True, False])[:, None, None], gaps=gaps, coarse={1: 4}, mtf=0.25)
    clear = np.ones((10, 12), bool)
    clear[3:7, 3:8] = False  # the blur is wider than a coarse pixel
    assert seen.clear(4)[clear].all()
    assert not seen.clear(4)[4:6, 5:6].any()
    fills = simple_fills(seen)
    for name, tolerance in (("nearest neighbor", 2.0), ("bilinear", 0.1), ("bicubic", 0.1)):
        error = np.abs(fills[name][1] - ramp[1])
        error[8:32, 8:36] = 0  # filled
        assert error[8:-8, 8:-13].max() <= tolerance, name
        assert np.isfinite(fills[name][1]).all()
    assert np.isnan(fills["bilinear"][0]).all()
    assert (fills["nearest neighbor"][0][~gaps] == ramp[0][~gaps]).all()
    assert np.isnan(fills["band mean"][1]).all()


def test_regression_learns_the_relation_of_bands_and_continues_to_equal_bits(tmp_path: Path) -> None:
    """Band 2 is minus band 1 plus 1: a hidden band follows exactly, and its mean has an error of 1."""
    first = np.random.default_rng(1).normal(size=(64, 1, 1, 1)) * np.ones((8, 8))
    truth = np.concatenate([first, 1 - first], axis=1)
    given = np.broadcast_to(np.array([True, False])[:, None, None], truth.shape)
    calls: list[range] = []

    def draw(numbers: range) -> Examples:
        calls.append(numbers)
        rows = np.random.default_rng(numbers.start).integers(64, size=len(numbers))
        x = np.where(given, truth, np.nan)[rows]  # hidden values have no influence
        return Examples(x=x, given=given[rows], truth=truth[rows], compared=~given[rows])

    net = train_regression(draw, 2, seed=3, steps=60)
    assert net is not None
    found = net.predict(truth[0][:, :5, :7], given[0][:, :5, :7])
    assert np.sqrt(np.mean((found[1] - truth[0, 1, :5, :7]) ** 2)) < 0.3
    complete = train_regression(draw, 2, seed=3, steps=4)
    state, start = tmp_path / "state.pt", len(calls)
    options = {"seed": 3, "steps": 4, "state": state}
    assert train_regression(draw, 2, **options, is_stopped=lambda: len(calls) == start + 2) is None
    resumed = train_regression(draw, 2, **options)
    assert complete is not None
    assert resumed is not None
    assert len(calls) == start + 4
    for a, b in zip(complete.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert train_regression(draw, 2, **options) is not None
    assert len(calls) == start + 4, "a finished network is not trained"
