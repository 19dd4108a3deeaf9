"""Copies of train tiles: found where they were planted, and nowhere else; what cannot be said is left open."""

from pathlib import Path

import numpy as np
import pytest

from dithc.evaluate import Extractor, compare, extract
from dithc.evaluate.copies import MOST_QUERIES, copied_shares
from dithc.log import UserError

FEATURES = 6


def planted(*, train: int, images: int, copies: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Train rows far from the origin, and rows of which `copies` lie close to one of them, the rest anywhere."""
    draws = np.random.default_rng(seed)
    rows = 1000 + draws.normal(size=(train, FEATURES))
    others = 1000 + draws.normal(size=(images, FEATURES))
    others[:copies] = rows[draws.permutation(train)[:copies]] + 1e-4 * draws.normal(size=(copies, FEATURES))
    return rows.astype(np.float32), others.astype(np.float32)


def truth(train: np.ndarray, images: np.ndarray) -> float:
    distances = np.linalg.norm(images[:, None].astype(np.float64) - train[None].astype(np.float64), axis=2)
    first, second = np.sort(distances, axis=1)[:, :2].T
    return float((first < second / 3).mean())


def test_blocks_may_be_empty_and_large():
    train, images = planted(train=2500, images=30, copies=7)
    assert copied_shares([train[:0], train], [[images[:0], images]])[0] == [truth(train, images)]


@pytest.mark.parametrize("block", [1, 7, 100])
def test_share_is_that_of_all_distances_however_rows_are_cut(block):
    train, images = planted(train=50, images=40, copies=9)
    _, chance = planted(train=50, images=30, copies=0, seed=1)
    shares, counts = copied_shares(
        *([train[i : i + block] for i in range(0, 50, block)], [[images[:3], images[3:]], [chance]])
    )
    assert shares == [truth(train, images), truth(train, chance)]
    assert shares[0] >= 9 / 40
    assert counts == [40, 30]


def test_images_as_near_to_a_second_tile_are_no_copies():
    train = np.array([[0.0, 0], [0, 0], [10, 0], [13, 0]], np.float32)
    images = np.array([[0.1, 0], [0, 0], [10.74, 0], [10.76, 0], [12.3, 0]], np.float32)
    shares, _ = copied_shares([train], [[images[i : i + 1]] for i in range(5)])
    assert shares == [0, 0, 1, 0, 1]  # a tile that is there twice is no single one; a third of 2.26 is 0.753


def test_large_sets_are_taken_evenly():
    images = np.zeros((3 * MOST_QUERIES, 1), np.float32)
    images[::3] = 5.0
    shares, counts = copied_shares([np.array([[5.0], [50.0]], np.float32)], [[images[:1000], images[1000:]]])
    assert (shares, counts) == ([1.0], [MOST_QUERIES])


@pytest.fixture
def folders(extractor: Extractor, images: np.ndarray, tmp_path: Path) -> tuple[Path, Path]:
    """Features of 60 real images, and of 20 of which 15 are among the first 30 of those."""
    generated = np.concatenate([images[:15], images[30:35] // 2 + 60])
    extract(iter([images]), extractor, tmp_path / "real", total=60, shard_size=16, set_hash="r", stretch="s")
    extract(iter([generated]), extractor, tmp_path / "generated", total=20, set_hash="g", stretch="s")
    return tmp_path / "real", tmp_path / "generated"


def test_comparison_says_copies_beside_those_of_tiles_that_were_not_learnt(folders: tuple[Path, Path]) -> None:
    is_train = np.arange(60) < 30
    numbers = compare(*folders, is_train=is_train)
    real, generated = (
        np.concatenate([np.load(path) for path in sorted(folder.glob("shard-*.npy"))]) for folder in folders
    )
    assert numbers["copies"] == truth(real[:30], generated) >= 15 / 20
    assert numbers["copies_held_out"] == truth(real[:30], real[30:])
    assert numbers["copies_n"] == [20, 30]
    every = compare(*folders, is_train=np.ones(60, bool))
    assert every["copies"] is not None
    assert every["copies_held_out"] is None


def test_without_train_tiles_nothing_is_said_of_copies(folders: tuple[Path, Path]) -> None:
    real, generated = folders
    for numbers in (
        compare(real, generated),
        compare(real, generated, is_train=np.arange(60) < 1),
        compare(real, generated / "stats.npz", is_train=np.arange(60) < 30),
    ):
        assert [numbers[name] for name in ("copies", "copies_held_out", "copies_n")] == [None] * 3


def test_features_of_other_tiles_are_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="features of 60 tiles"):
        compare(*folders, is_train=np.arange(59) < 30)
