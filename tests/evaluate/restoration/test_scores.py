"""Scores equal closed forms and direct sums; calibrated and narrow ensembles have their known scores."""

import numpy as np
import pytest
from scipy import special

from dithc.core.image_quality import ensemble_quantile
from dithc.evaluate.restoration import ensemble_scores, pixel_scores, pooled, scores


@pytest.fixture
def draws() -> np.random.Generator:
    return np.random.default_rng(7)


def test_pixel_scores_of_known_errors_match_closed_forms(draws: np.random.Generator) -> None:
    truth = np.array([[3.0], [4.0]]) * draws.uniform(1, 2, (1, 20 * 20))  # spectra of one direction
    truth = truth.reshape(2, 20, 20)
    hidden = np.zeros((20, 20), bool)
    hidden[5:12, 4:18] = True
    mean = truth + np.where(hidden, np.array([0.3, -0.4])[:, None, None], 99.0)  # observed pixels are not evaluated
    found = pixel_scores(mean, truth, hidden, data_range=np.array([2.0, 5.0]))
    assert found["pixels"] == 2 * 7 * 14
    assert found["rmse"] == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
    assert (found["mae"], found["bias"]) == (pytest.approx(0.35), pytest.approx(-0.05))
    assert found["psnr_db"] == pytest.approx(-10 * np.log10((0.15**2 + 0.08**2) / 2))
    first, second = mean[:, hidden]
    angles = np.degrees(np.abs(np.arctan2(second, first) - np.arctan2(4, 3)))
    assert found["sam_degrees"] == pytest.approx(angles.mean())
    one_band = pixel_scores(mean, truth, hidden & np.array([True, False])[:, None, None], data_range=2.0)
    assert (one_band["pixels"], one_band["rmse"]) == (98, pytest.approx(0.3))
    empty = pixel_scores(mean, truth, hidden & False)
    assert (empty["pixels"], empty["rmse"], empty["ssim"]) == (0, None, None)


def test_ssim_averages_windows_centered_on_the_mask(draws: np.random.Generator) -> None:
    truth = draws.normal(size=(1, 16, 16))
    mean = truth + draws.normal(size=truth.shape)
    for row, column in ((3, 3), (8, 12)):
        where = np.zeros((16, 16), bool)
        where[row, column] = True
        where[0, 0] = True  # without a window inside the image
        where[10, 5], mean[0, 12, 5] = True, np.nan  # without a complete window
        x, y = (image[0, row - 3 : row + 4, column - 3 : column + 4].ravel() for image in (mean, truth))
        (var_x, both), (_, var_y) = np.cov(x, y)
        c1, c2 = 0.01**2, 0.03**2
        upper = (2 * x.mean() * y.mean() + c1) * (2 * both + c2)
        expected = upper / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (var_x + var_y + c2))
        assert pixel_scores(mean, truth, where)["ssim"] == pytest.approx(expected)


def test_pooled_scores_equal_the_scores_of_all_images(draws: np.random.Generator) -> None:
    truth, members = draws.normal(size=(3, 2, 9, 9)), draws.normal(size=(6, 3, 2, 9, 9))
    where = draws.random((3, 9, 9)) < np.array([0.2, 0.9, 0.0])[:, None, None]
    parts = [pixel_scores(members[0, i], truth[i], where[i]) for i in range(3)]
    together, joined = pixel_scores(members[0], truth, where), pooled(parts)
    for key in ("pixels", "rmse", "mae", "bias", "psnr_db", "sam_degrees"):
        assert joined[key] == pytest.approx(together[key]), key
    assert pooled(parts, restored=parts)["ratio"] == 1
    assert "ratio_interval" not in pooled(parts, restored=parts)  # too few parts
    better = [
        score | {"rmse": score["rmse"] and share * score["rmse"]}
        for score in parts
        for share in (0.4, 0.5, 0.8, 0.9, 1)
    ]
    joined = pooled([score for score in parts for _ in range(5)], restored=better)
    assert joined["ratio"] == pytest.approx(np.sqrt(np.mean(np.square([0.4, 0.5, 0.8, 0.9, 1]))))
    assert 0.4 < joined["ratio_interval"][0] < 0.7 < 0.8 < joined["ratio_interval"][1] < 1
    assert joined["ratio_median"] == pytest.approx(0.8)
    exact = [parts[0] | {"rmse": 0.0}, parts[1]]
    assert pooled(exact, restored=parts[:2])["ratio"] == pytest.approx(
        pooled(parts[:2])["rmse"] / pooled(exact)["rmse"]
    )
    ensembles = [ensemble_scores(members[:, i], truth[i], where[i]) for i in range(3)]
    together, joined = ensemble_scores(members, truth, where), pooled(ensembles)
    for key, value in together.items():
        assert joined[key] == pytest.approx(value), key
    assert pooled(parts[2:]) == {"pixels": 0}


def test_fair_crps_and_ranks_equal_double_sums(draws: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "CHUNK", 10)
    members, truth = draws.integers(0, 6, (6, 2, 4, 5)).astype(np.float32), draws.integers(0, 6, (2, 4, 5)) + 0.0
    where = draws.random((4, 5)) < 0.8
    x, y = members[:, :, where].reshape(6, -1).astype(float), truth[:, where].ravel()
    halves = [(column[start::2], t) for column, t in zip(x.T, y, strict=True) for start in (0, 1)]
    crps = [
        np.mean([abs(a - t) for a in half]) - sum(abs(a - b) for a in half for b in half) / (2 * 3 * 2)
        for half, t in halves
    ]
    ranks = np.zeros(4)
    for half, t in halves:
        low, high = int((half < t).sum()), int((half <= t).sum())
        ranks[low : high + 1] += 1 / (high - low + 1) / len(halves)
    found = ensemble_scores(members, truth, where)
    assert found["crps"] == pytest.approx(np.mean(crps))
    assert found["rank_histogram"] == pytest.approx(ranks.tolist())
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((x.mean(axis=0) - y) ** 2)))


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("size", "coverage"), [(8, (7 / 9, 8 / 10)), (40, (0.9, 0.9))])
def test_calibrated_gaussian_ensemble_has_its_known_scores(
    draws: np.random.Generator, size: int, coverage: tuple[float, float], paired: bool
) -> None:
    """The fair CRPS of an ensemble from the truth's distribution is sigma / sqrt(pi), whatever its size."""
    center = 5 * draws.normal(size=(1, 200, 200))
    members = 2 * draws.normal(size=(size, 1, 200, 200))
    if paired:
        members[1::2] = -members[0::2]
    members += center
    found = ensemble_scores(members, center + 2 * draws.normal(size=center.shape))
    assert found["crps"] == pytest.approx(2 / np.sqrt(np.pi), rel=0.02)
    assert found["calibrated_coverage"] == pytest.approx(min(0.9, size / (size + 2)))
    assert found["coverage"] == pytest.approx(coverage[paired], abs=0.008)
    assert found["spread_over_error"] == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(found["rank_histogram"], 1 / (size // 2 + 1), rtol=0.2)


def test_narrow_ensemble_is_detected(draws: np.random.Generator) -> None:
    """Of truth with deviation 1, the 5 to 95 % interval of members with deviation 1/2 covers 2 Phi(0.822) - 1."""
    members, truth = draws.normal(0, 0.5, (400, 1, 100, 100)), draws.normal(size=(1, 100, 100))
    found = ensemble_scores(members, truth)
    assert found["coverage"] == pytest.approx(special.erf(1.6449 / 2 / np.sqrt(2)), abs=0.015)
    assert found["spread_over_error"] == pytest.approx(0.5, abs=0.02)
    assert found["rank_histogram"][0] > 10 / 201
    assert found["rank_histogram"][100] < 1 / 201


def test_ensemble_quantiles_are_ranks_of_a_further_member() -> None:
    for count, expected in ((19, [1.0, 19.0]), (39, [2.0, 38.0])):
        assert ensemble_quantile(np.arange(1.0, count + 1), [0.05, 0.95]).tolist() == pytest.approx(expected)
