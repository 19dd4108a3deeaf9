"""Planted copies of train tiles are found in any orientation, without false positives; unknown shares are None."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dithc.core.logging import UserError
from dithc.evaluate import Extractor, compare_features, extract_features
from dithc.evaluate.memorization import MAX_QUERIES, copied_share, evenly, take
from dithc.evaluate.shards import TURNED_FILES
from tests.evaluate.conftest import image_set

FEATURES = 6
TRAIN, REAL, COPIES, GENERATED = 30, 60, 16, 20
IS_TRAIN = np.arange(REAL) < TRAIN
SHARES = ("memorized_fraction", "memorized_fraction_val", "memorized_n")


def plant_copies(*, train: int, images: int, copies: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return train rows far from the origin, and images (8, n, d) with `copies` near one of them in one of 8 views."""
    draws = np.random.default_rng(seed)
    rows = 1000 + draws.normal(size=(train, FEATURES))
    views = 1000 + draws.normal(size=(8, images, FEATURES))
    copied = rows[draws.permutation(train)[:copies]] + 1e-4 * draws.normal(size=(copies, FEATURES))
    views[draws.integers(0, 8, copies), np.arange(copies)] = copied
    return rows.astype(np.float32), views.astype(np.float32)


def reference_share(train: np.ndarray, views: np.ndarray) -> float:
    between = views.astype(np.float64)[:, :, None] - train[None, None].astype(np.float64)  # (8, n, m, d)
    distances = np.linalg.norm(between, axis=3).min(axis=0)
    first, second = np.sort(distances, axis=1)[:, :2].T
    return float((first < second / 3).mean())


def all_rows(rows: np.ndarray) -> NDArray[np.bool_]:
    return np.ones(len(rows), bool)


def test_copied_share_accepts_empty_and_large_blocks():
    train, views = plant_copies(train=2500, images=30, copies=7)
    assert copied_share(views, [train[:0], train], all_rows(train)) == reference_share(train, views)


@pytest.mark.parametrize("block", [1, 7, 100])
def test_copied_share_equals_the_all_pairs_share_for_any_block_size(block):
    train, views = plant_copies(train=50, images=40, copies=9)
    other, chance = plant_copies(train=30, images=30, copies=0, seed=1)
    order = np.random.default_rng(2).permutation(80)
    real, is_train = np.concatenate([train, other])[order], (np.arange(80) < 50)[order]
    blocks = [real[i : i + block] for i in range(0, 80, block)]
    assert copied_share(views, blocks, is_train) == reference_share(train, views) >= 9 / 40
    assert copied_share(chance, blocks, is_train) == reference_share(train, chance)


def test_images_close_to_two_tiles_are_not_copies():
    train = np.array([[0.0, 0], [0, 0], [10, 0], [13, 0]], np.float32)
    images = np.array([[0.1, 0], [0, 0], [10.74, 0], [10.76, 0], [12.3, 0]], np.float32)
    shares = [copied_share([images[i : i + 1]] * 8, [train], all_rows(train)) for i in range(5)]
    assert shares == [0, 0, 1, 0, 1]  # a duplicate tile has no nearest single tile; a third of 2.26 is 0.753


def test_image_close_to_two_tiles_in_two_orientations_is_not_a_copy():
    train = np.array([[0.0], [10.0], [50.0]], np.float32)
    upright, turned = np.array([[0.1]], np.float32), np.array([[10.1]], np.float32)
    assert copied_share([upright, upright], [train], all_rows(train)) == 1
    assert copied_share([upright, turned], [train], all_rows(train)) == 0


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
    views = [np.zeros((8, 64), np.float32)] * 8
    for count in (2048, 16_384):
        np.save(tmp_path / "real.npy", np.ones((count, 64), np.float32))
        real = np.load(tmp_path / "real.npy", mmap_mode="r")
        tracemalloc.start()
        copied_share(views, [real], all_rows(real))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 20e6


def orientations(image: np.ndarray) -> list[np.ndarray]:
    """Return the 8 orientations by transposing and reversing."""
    plain = [image, image[..., ::-1], image[..., ::-1, :], image[..., ::-1, ::-1]]
    return plain + [one.swapaxes(-1, -2) for one in plain]


class Coarse:
    """A network that depends on orientation: its features are groups of four pixels."""

    num_features = 3 * 16

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: Any) -> Any:
        self.seen += len(images)
        return images.float().reshape(len(images), 3, 4, 2, 4, 2).mean((3, 5)).flatten(1)


@pytest.fixture
def coarse(extractor: Extractor) -> Extractor:
    identity = {
        name: getattr(extractor, name)
        for name in ("name", "kind", "sha256", "resize", "comparable_to_published", "note")
    }
    return Extractor(**identity, num_features=Coarse.num_features, network=Coarse())


@pytest.fixture
def sets(images: np.ndarray) -> SimpleNamespace:
    """Return 60 real images, and 20 images with 16 copies of train images (of the first 30), two per orientation."""
    copies = [orientations(images[i])[i % 8] for i in range(COPIES)]
    return SimpleNamespace(real=images, generated=np.stack([*copies, *(images[30:34] // 2 + 60)]))


@pytest.fixture
def make(coarse: Extractor, sets: SimpleNamespace, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Extract both sets into folders."""

    def run(*, turned: bool = True) -> tuple[Path, Path]:
        for name, rows in (("real", np.arange(TRAIN, REAL)), ("generated", np.arange(GENERATED))):
            shown = getattr(sets, name)
            images = image_set(shown, name, held_out=rows)
            extract_features(images, coarse, tmp_path / name, shard_size=16, batch=7, turned=turned)
        return tmp_path / "real", tmp_path / "generated"

    return run


def test_rotated_and_flipped_copies_are_detected(make, coarse, sets):
    numbers = compare_features(*make(), is_train=IS_TRAIN)
    real, generated = (np.stack([coarse(view) for view in orientations(one)]) for one in (sets.real, sets.generated))
    train = real[0, :TRAIN]
    assert numbers["memorized_fraction"] == reference_share(train, generated) >= COPIES / GENERATED
    assert numbers["memorized_fraction_val"] == reference_share(train, real[:, TRAIN:]) == 0
    assert numbers["memorized_n"] == [GENERATED, REAL - TRAIN]
    assert reference_share(train, generated[:1]) == COPIES / 8 / GENERATED


def test_dihedral_features_do_not_change_scores_and_shards(make):
    plain = make(turned=False)
    before = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in plain]
    numbers = compare_features(*plain, is_train=IS_TRAIN)
    more = make()
    for folder, known in zip(more, before, strict=True):
        found = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert found.keys() - known.keys() == set(TURNED_FILES)
        assert all(found[name] == content for name, content in known.items())
    repeated = compare_features(*more, is_train=IS_TRAIN)
    assert [numbers[name] for name in ("fid", "kid", "floor")] == [repeated[name] for name in ("fid", "kid", "floor")]
    assert [numbers[name] for name in SHARES] == [None] * 3
    assert any("copies were not searched" in text for text in numbers["warnings"])
    assert not any("copies" in text for text in repeated["warnings"])
    make(turned=False)
    assert not list(more[0].glob("dihedral*"))


def test_dihedral_features_are_reused_and_rejected_if_damaged(make, coarse):
    real, generated = make()
    content, seen = (generated / TURNED_FILES[0]).read_bytes(), coarse.network.seen
    make()
    assert coarse.network.seen == seen
    (generated / TURNED_FILES[0]).write_bytes(content[:-4] + b"abcd")
    with pytest.raises(UserError, match="cannot be used"):
        compare_features(real, generated, is_train=IS_TRAIN)
    make()
    assert (generated / TURNED_FILES[0]).read_bytes() == content
    assert coarse.network.seen == seen + 7 * GENERATED
    (real / TURNED_FILES[0]).unlink()
    with pytest.raises(UserError, match="cannot be used"):
        compare_features(real, generated, is_train=IS_TRAIN)


def test_dihedral_features_of_different_images_are_rejected(make):
    with pytest.raises(UserError, match="features of other images"):
        compare_features(*make(), is_train=np.arange(REAL) < TRAIN + 1)


def test_held_out_copied_share_requires_held_out_tiles(make, coarse, sets, tmp_path):
    _, generated = make()
    shown = sets.real[:TRAIN]
    extract_features(image_set(shown, "t"), coarse, tmp_path / "train", turned=True)
    numbers = compare_features(tmp_path / "train", generated, is_train=np.ones(TRAIN, bool))
    assert numbers["memorized_fraction"] >= COPIES / GENERATED
    assert numbers["memorized_fraction_val"] is None
    assert numbers["memorized_n"] == [GENERATED]


def test_copied_shares_are_none_without_enough_train_tiles(make):
    real, generated = make()
    for numbers in (compare_features(real, generated), compare_features(real, generated, is_train=np.arange(REAL) < 1)):
        assert [numbers[name] for name in SHARES] == [None] * 3
        assert not any("copies" in text for text in numbers["warnings"])


def test_features_of_a_different_tile_count_are_rejected(make):
    with pytest.raises(UserError, match="features of 60 tiles"):
        compare_features(*make(), is_train=np.arange(59) < 30)
