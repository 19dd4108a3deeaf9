"""Detectability: equal sets, known degradations, and the classifier's AUC against its definition."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dithc.evaluate import detectability
from dithc.report.assessment.quality import detectability_of

SIDE, IMAGES = 64, 96
WIDTH = sum(detectability.counts(3).values())


def parcels(count: int, seed: int, *, rounding: float = 0.0) -> np.ndarray:
    """Return images of parcels with straight borders, a color each, and slight noise; `rounding` in pixels rounds corners."""
    rng = np.random.default_rng(seed)
    places = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1).reshape(-1, 2)
    images = []
    for _ in range(count):
        centers = rng.uniform(0, SIDE, (rng.integers(8, 24), 2))
        nearest = ((places[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        cells = gaussian_filter(np.eye(len(centers))[nearest].reshape(SIDE, SIDE, -1), (rounding, rounding, 0))
        nearest = cells.argmax(axis=2).ravel()
        colors = rng.uniform(60, 180, (len(centers), 1)) + rng.normal(0, 12, (len(centers), 3))
        images.append(colors[nearest].T.reshape(3, SIDE, SIDE))
    return to_bytes(np.stack(images) + rng.normal(0, 2, (count, 3, SIDE, SIDE)))


def to_bytes(images: np.ndarray) -> np.ndarray:
    return np.clip(np.round(images), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def real() -> np.ndarray:
    return parcels(2 * IMAGES, seed=0)


def blurred(images: np.ndarray, level: float) -> np.ndarray:
    return to_bytes(gaussian_filter(images.astype(float), (0, 0, level, level)))


def noisy(images: np.ndarray, level: float) -> np.ndarray:
    return to_bytes(images + np.random.default_rng(1).normal(0, level, images.shape))


def shuffled(images: np.ndarray, level: float) -> np.ndarray:
    """Permute a share of the 8 x 8 blocks of each image."""
    rng, size, count = np.random.default_rng(1), 8, SIDE // 8
    blocks = images.reshape(-1, 3, count, size, count, size).transpose(0, 2, 4, 1, 3, 5).copy()
    for image in blocks:
        chosen = np.argwhere(rng.random((count, count)) < level)
        image[tuple(chosen.T)] = image[tuple(rng.permutation(chosen).T)]
    return blocks.transpose(0, 3, 1, 4, 2, 5).reshape(images.shape)


def rounded(images: np.ndarray, level: float) -> np.ndarray:
    return parcels(len(images), seed=0, rounding=level)


def auc_by_scale(images: np.ndarray, real: np.ndarray) -> list[float]:
    found = detectability.compare(*map(detectability.describe, (images, real)), bands=3)
    assert found is not None
    assert list(found) == ["1/1", "1/2", "1/4", "1/8"]
    return [scale["auc"] for scale in found.values()]


def test_halves_of_a_set_are_indistinguishable_with_every_seed(real):
    rows = detectability.describe(real)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(rows))
        for scale in range(4):
            part = rows[order, scale * WIDTH : (scale + 1) * WIDTH]
            _, (low, high) = detectability.auc(part[:IMAGES], part[IMAGES:], seed=seed)
            assert low <= 0.5 <= high, (seed, scale)


@pytest.mark.parametrize(
    ("degrade", "levels", "largest"),
    [
        (blurred, (0.4, 0.6, 1.0, 2.0), 0.99),
        (noisy, (1.0, 2.0, 4.0, 16.0), 0.99),
        (shuffled, (0.05, 0.2, 0.8), 0.99),
        (rounded, (4.0, 8.0, 12.0), 0.8),
    ],
)
def test_auc_rises_with_the_level_of_a_degradation(real, degrade, levels, largest):
    table = np.array([auc_by_scale(degrade(real[:IMAGES], level), real[IMAGES:]) for level in levels])
    assert (np.diff(table, axis=0) > -0.015).all(), table  # scales without the degradation have about 0.5
    assert (np.diff(table.mean(axis=1)) > 0).all(), table
    assert table[-1, 0] > largest
    assert table[0].mean() < table[-1].mean() - 0.1


def test_groups_name_the_difference(real):
    tinted = to_bytes(real[:IMAGES] * np.array([1.1, 1.0, 0.9])[:, None, None])
    found = detectability.compare(*map(detectability.describe, (tinted, real[IMAGES:])), bands=3)
    groups = found["1/8"]["groups"]
    assert max(groups, key=groups.get) == "color"
    assert groups["color"] > 0.9
    assert groups["edges"] < 0.7


def test_auc_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    negative, positive = rng.integers(0, 9, 31).astype(float), rng.integers(2, 12, 17).astype(float)
    pairs = [(p > n) + 0.5 * (p == n) for n in negative for p in positive]
    assert detectability._rank_auc(negative, positive) == pytest.approx(np.mean(pairs))


def test_small_images_and_small_sets_have_no_score():
    rows = detectability.describe(parcels(20, seed=3)[:, :, :32, :32])
    assert np.isnan(rows[:, 3 * WIDTH :]).all()
    assert np.isfinite(rows[:, : 3 * WIDTH]).all()
    assert list(detectability.compare(rows, rows, bands=3)) == ["1/1", "1/2", "1/4"]
    assert detectability.compare(rows[:15], rows, bands=3) is None


def test_large_images_are_described_by_their_center():
    large = np.random.default_rng(0).integers(0, 255, (2, 3, 200, 180), dtype=np.uint8)
    assert np.array_equal(detectability.describe(large), detectability.describe(large[:, :, 36:164, 26:154]))
    flat = np.zeros((2, 3, 64, 64), np.uint8)
    assert np.isfinite(detectability.describe(flat)).all()


def scale(auc: float, **groups: float) -> dict[str, object]:
    return {"auc": auc, "interval": [auc - 0.05, auc + 0.05], "groups": {"color": 0.5, "edges": 0.5, **groups}}


@pytest.mark.parametrize(
    ("auc", "rating", "parts"),
    [
        (
            (0.99, 0.95, 0.7, 0.55),
            "fair",
            ("at 1/8 of the resolution, but does at 1/4 with an AUC of 0.70", "by edges"),
        ),
        ((0.99, 0.95, 0.9, 0.8), "poor", ("distinguishes the images from real tiles at 1/8 with an AUC of 0.80",)),
        ((0.9, 0.58, 0.5, 0.5), "good", ("at 1/2 of the resolution, but does at 1/1",)),
        ((0.55, 0.5, 0.5, 0.5), "good", ("does not distinguish the images from real tiles at 1/1 of the resolution.",)),
    ],
)
def test_verdict_names_the_finest_equal_scale_and_limits_the_rating(auc, rating, parts):
    scales = {f"1/{2**number}": scale(value, edges=value) for number, value in enumerate(auc)}
    description, found, verdict = detectability_of(scales, "close to the best", "good")
    assert found == rating
    assert (description == "close to the best") == (rating == "good"), "never close if half the resolution differs"
    assert all(part in verdict for part in parts), verdict
