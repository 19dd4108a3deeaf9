"""Planted copies of train tiles are found in any orientation, without false positives; unknown shares are None."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

from dithc.core.logging import UserError
from dithc.evaluate import Extractor, compare_features, extract_features
from dithc.evaluate.memorization import MAX_QUERIES, copied_share, evenly, take, thumbnails
from tests.evaluate.conftest import image_set

TRAIN, REAL, COPIES, GENERATED = 30, 60, 16, 20
IS_TRAIN = np.arange(REAL) < TRAIN
SHARES = ("memorized_fraction", "memorized_fraction_val", "memorized_n")
SIDE, PART = 44, 2  # pixels; a part is 1/22


def landscapes(count: int, *, seed: int, side: int = SIDE) -> NDArray[np.uint8]:
    """Return images with structure at all scales (n, 3, side, side)."""
    draws = np.random.default_rng(seed)
    waves = sum(
        side / 8 * 2**scale * gaussian_filter(draws.normal(size=(count, 3, side, side)), (0, 0, 2**scale, 2**scale))
        for scale in range(4)
    )
    return np.clip(128 + 8 * waves, 0, 255).astype(np.uint8)


def orientations(image: np.ndarray) -> list[np.ndarray]:
    """Return the 8 orientations by transposing and reversing."""
    plain = [image, image[..., ::-1], image[..., ::-1, :], image[..., ::-1, ::-1]]
    return plain + [one.swapaxes(-1, -2) for one in plain]


def in_all_orientations(images: np.ndarray) -> np.ndarray:
    """Turn image i to orientation i % 8."""
    return np.stack([orientations(image)[i % 8] for i, image in enumerate(images)])


def reference_share(train: np.ndarray, images: np.ndarray) -> float:
    """Return the share of copies from cut images (n, 3, SIDE, SIDE), without thumbnails."""

    def cells(cut: np.ndarray) -> np.ndarray:
        means = cut.astype(np.float64).reshape(3, 5, 4 * PART, 5, 4 * PART).mean(axis=(2, 4))
        return means - means.mean(axis=(1, 2), keepdims=True)

    tiles = [cells(tile[:, PART:-PART, PART:-PART]) for tile in train]
    found = 0
    for image in images:
        views = [
            cells(turned[:, y : y + 20 * PART, x : x + 20 * PART])
            for turned in orientations(image)
            for y in (0, PART, 2 * PART)
            for x in (0, PART, 2 * PART)
        ]
        first, *others = sorted(min(np.linalg.norm(view - tile) for view in views) for tile in tiles)
        found += first < min(others[0], *map(np.linalg.norm, views)) / 3
    return found / len(images)


def share(images: np.ndarray, train: np.ndarray) -> float:
    return copied_share(thumbnails(images), [thumbnails(train)], np.ones(len(train), bool))


@pytest.mark.parametrize("block", [1, 7, 100])
def test_copied_share_equals_the_share_of_cut_images_for_any_block_size(block):
    real, draws = landscapes(80, seed=0), np.random.default_rng(1)
    is_train = draws.permutation(80) < 50
    strength = np.linspace(0, 1, 40)[:, None, None, None]  # from a copy to another image
    images = (1 - strength) * real[is_train][:40] + strength * landscapes(40, seed=2)
    images = in_all_orientations(images.astype(np.uint8))
    blocks = [thumbnails(real[i : i + block]) for i in range(0, 80, block)]
    expected = reference_share(real[is_train], images)
    assert copied_share(thumbnails(images), blocks, is_train) == expected
    assert 0.1 < expected < 0.9


def test_copied_share_accepts_empty_and_large_blocks():
    train = landscapes(2500, seed=3, side=8)
    blocks = [thumbnails(train[:0]), thumbnails(train)]
    assert copied_share(thumbnails(train[2490:]), blocks, np.arange(2500) != 2495) == 0.9


@pytest.mark.parametrize("side", [22, 44, 64, 50])
def test_thumbnail_of_a_turned_image_is_the_turned_thumbnail(side):
    images = landscapes(3, seed=4, side=side)
    for turned, thumbnail in zip(orientations(images), orientations(thumbnails(images)), strict=True):
        np.testing.assert_allclose(thumbnails(turned), thumbnail, atol=1e-3)


def test_thumbnail_contains_the_means_of_windows():
    image = landscapes(1, seed=5)
    found = thumbnails(image).reshape(3, 3, 5, 3, 5)  # bands, rows of windows, of cells, columns of windows, of cells
    y, x = 2 * PART + 3 * 4 * PART, 0 * PART + 1 * 4 * PART
    expected = image[0, :, y : y + 4 * PART, x : x + 4 * PART].mean(axis=(1, 2))
    np.testing.assert_allclose(found[:, 2, 3, 0, 1], expected, rtol=1e-5)


def shift(images: np.ndarray, y: int, x: int) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (0, 0), (8, 8), (8, 8)), mode="reflect")
    return padded[:, :, 8 + y : 8 + y + images.shape[2], 8 + x : 8 + x + images.shape[3]]


DISTURBANCES = {
    "noise": lambda images: images + np.random.default_rng(0).normal(size=images.shape) * 16,
    "shift by half a part": lambda images: shift(images, 1, 1),
    "shift by a part": lambda images: shift(images, -PART, PART),
    "shift by more than a part": lambda images: shift(images, 3, 0),
    "brightness": lambda images: images + 25.0,
    "gain": lambda images: images * 1.2,
    "contrast": lambda images: (images - 128.0) * 0.85 + 128,
    "blur": lambda images: gaussian_filter(images.astype(np.float64), (0, 0, 1.5, 1.5)),
    "another size": lambda images: zoom(images.astype(np.float64), (1, 1, 1.5, 1.5), order=1),
}


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_disturbed_copies_are_detected_in_any_orientation(disturbance):
    train = landscapes(80, seed=6)
    images = np.clip(DISTURBANCES[disturbance](train[:16]), 0, 255).astype(np.uint8)
    assert share(in_all_orientations(images), train) == 1
    assert share(in_all_orientations(images), train[16:]) == 0


def test_images_close_to_two_tiles_are_not_copies():
    train, images = landscapes(20, seed=7), landscapes(20, seed=7)[:8]
    assert share(images, train) == 1
    assert share(images, np.concatenate([train, train[:8]])) == 0
    assert share(images, np.concatenate([train, orientations(train)[5][:8]])) == 0  # the same tile in two orientations


def test_images_without_structure_are_not_copies_of_the_flattest_tile():
    train = landscapes(20, seed=8)
    train[0] = train[0] // 32 + 100
    gray = np.random.default_rng(0).integers(120, 123, (8, 3, SIDE, SIDE)).astype(np.uint8)
    assert share(gray, train) == 0
    assert share(train[:1], train) == 1


def test_large_sets_are_subsampled_evenly():
    rows = np.arange(3 * MAX_QUERIES)
    np.testing.assert_array_equal(evenly(rows), rows[::3])
    assert evenly(rows[:5]).tolist() == [0, 1, 2, 3, 4]
    assert len(evenly(rows[:0])) == 0
    values = np.random.default_rng(0).normal(size=(100, 2))
    blocks = [values[:1], values[1:1], values[1:60], values[60:]]
    for chosen in (np.array([0, 1, 59, 60, 99]), np.array([5]), np.array([], np.int64), np.arange(100)):
        np.testing.assert_array_equal(take(blocks, chosen), values[chosen])


def test_memory_does_not_grow_with_the_number_of_tiles(tmp_path):
    peaks = []
    images = np.zeros((8, 3, 15, 15), np.float32)
    for count in (1024, 4096):
        np.save(tmp_path / "real.npy", np.ones((count, 3, 15, 15), np.float32))
        real = np.load(tmp_path / "real.npy", mmap_mode="r")
        tracemalloc.start()
        copied_share(images, [real], np.ones(count, bool))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 40e6


@pytest.fixture
def make(extractor: Extractor, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Extract 60 real images, and 20 images with 16 copies of train images (of the first 30), two per orientation."""

    def run(real: int = REAL) -> tuple[Path, Path]:
        images = landscapes(REAL, seed=9)
        generated = np.concatenate([in_all_orientations(images[:COPIES]), landscapes(GENERATED - COPIES, seed=10)])
        for name, shown in (("real", images[:real]), ("generated", generated)):
            extract_features(image_set(shown, name), extractor, tmp_path / name, shard_size=16, batch=7)
        return tmp_path / "real", tmp_path / "generated"

    return run


def test_rotated_and_flipped_copies_are_detected(make):
    numbers = compare_features(*make(), is_train=IS_TRAIN)
    assert [numbers[name] for name in SHARES] == [COPIES / GENERATED, 0, [GENERATED, REAL - TRAIN]]


def test_damaged_thumbnails_are_rejected_and_extracted_again(make, network):
    real, generated = make()
    path, seen = generated / "thumbnails-00001.npy", network.seen
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"abcd")
    with pytest.raises(UserError, match="cannot be used"):
        compare_features(real, generated, is_train=IS_TRAIN)
    make()
    assert (path.read_bytes(), network.seen - seen) == (content, GENERATED - 16)


def test_held_out_copied_share_requires_held_out_tiles(make):
    numbers = compare_features(*make(TRAIN), is_train=np.ones(TRAIN, bool))
    assert [numbers[name] for name in SHARES] == [COPIES / GENERATED, None, [GENERATED]]


def test_copied_shares_are_none_without_enough_train_tiles(make):
    real, generated = make()
    for numbers in (compare_features(real, generated), compare_features(real, generated, is_train=np.arange(REAL) < 1)):
        assert [numbers[name] for name in SHARES] == [None] * 3


def test_features_of_a_different_tile_count_are_rejected(make):
    with pytest.raises(UserError, match="features of 60 tiles"):
        compare_features(*make(), is_train=np.arange(59) < 30)
