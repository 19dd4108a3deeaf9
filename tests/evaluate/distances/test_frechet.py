"""Distances agree with closed forms and with the textbook matrix square root."""

import numpy as np
import pytest
from scipy import linalg

from dithc.core.logging import UserError
from dithc.evaluate.distances.frechet import fid, fid_floor, frechet_distance
from tests.evaluate.conftest import correlated, statistics


def test_distance_of_diagonal_gaussians_equals_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    mu_a, mu_b, a, b = rng.normal(size=(4, 40))
    a, b = a**2, b**2
    closed = np.sum((mu_a - mu_b) ** 2) + np.sum((np.sqrt(a) - np.sqrt(b)) ** 2)
    assert frechet_distance(mu_a, np.diag(a), mu_b, np.diag(b)) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(("n", "d"), [(500, 60), (61, 60), (20, 60), (2, 60)])
def test_distance_of_a_set_from_itself_is_zero(n: int, d: int) -> None:
    a = statistics(correlated(2, n, d))
    assert 0 <= fid(a, a) <= 1e-6 * np.trace(a.covariance())


def test_distance_equals_the_matrix_square_root_formula() -> None:
    a, b = statistics(correlated(6, 900, 50)), statistics(correlated(7, 700, 50))
    root = linalg.sqrtm(a.covariance() @ b.covariance()).real
    wanted = np.sum((a.mean() - b.mean()) ** 2) + np.trace(a.covariance() + b.covariance() - 2 * root)
    assert fid(a, b) == pytest.approx(wanted, rel=1e-8)


def test_distance_of_rank_deficient_sets_equals_the_distance_in_the_span() -> None:
    # 10 of 40 directions vary. Both sets are constant in the others, which do not change the distance.
    small_a, small_b = correlated(8, 300, 10), correlated(9, 300, 10)
    basis = np.linalg.qr(np.random.default_rng(10).normal(size=(40, 10)))[0]
    inside = fid(statistics(small_a), statistics(small_b))
    assert fid(statistics(small_a @ basis.T), statistics(small_b @ basis.T)) == pytest.approx(inside, rel=1e-6)


def test_distance_of_constant_sets_equals_the_squared_mean_difference() -> None:
    assert fid(statistics(np.zeros((3, 4))), statistics(np.ones((3, 4)))) == pytest.approx(4)


def test_too_few_images_log_a_warning(lines: pytest.LogCaptureFixture) -> None:
    fid(statistics(correlated(1, 5, 8)), statistics(correlated(2, 50, 8)))
    assert [record.levelname for record in lines.records] == ["WARNING"]
    assert "n = 5 images for 8 features" in lines.text


@pytest.mark.parametrize("field", ["kind", "sha256", "resize", "rendering_digest"])
def test_different_origins_are_rejected(field: str) -> None:
    with pytest.raises(UserError, match=f"{field}: 'a' and 'b'"):
        fid(statistics(np.eye(3), **{field: "a"}), statistics(np.eye(3), **{field: "b"}))


def test_different_numbers_of_features_are_rejected() -> None:
    with pytest.raises(UserError, match="num_features: 3 and 4"):
        fid(statistics(np.eye(3)), statistics(np.eye(4)))


def test_distance_accepts_different_sets_and_file_names() -> None:
    a, b = statistics(np.eye(3), extractor="a", set_hash="r"), statistics(np.eye(3), extractor="b", set_hash="g")
    assert fid(a, b) == pytest.approx(0, abs=1e-12)


def test_floor_compares_halves_and_depends_only_on_the_seed() -> None:
    rows = correlated(11, 401, 6)
    ground = fid_floor([rows], seed=3)
    assert (ground.n_first, ground.n_second) == (200, 201)
    assert fid_floor([rows[:7], rows[7:300], rows[300:]], seed=3).fid == pytest.approx(ground.fid, rel=1e-9)
    assert fid_floor([rows], seed=4).fid != ground.fid


def test_floor_decreases_with_the_set_size() -> None:
    rows = correlated(12, 4000, 10)
    assert 0 < fid_floor([rows]).fid < fid_floor([rows[:100]]).fid
