"""Splits by place: stable, independent of dates, and never through a tile."""

from collections import Counter

import numpy as np

from dithc.config import datasets
from dithc.data.splits.split import Splitter

UTM = (10.0, 0.0, 300000.0, 0.0, -10.0, 4600000.0)


def index_array(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_split_fractions_match_the_settings_and_cells_depend_on_the_seed() -> None:
    settings = datasets.SplitConfig(train_fraction=0.6, val_fraction=0.3)
    cells = [f"EPSG:32632/{i}/7" for i in range(4000)]
    counts = Counter(map(Splitter(settings, seed=0).split_of, cells))
    for name, share in {"train": 0.6, "val": 0.3, "test": 0.1}.items():
        assert abs(counts[name] / len(cells) - share) < 0.03
    first, second = (Splitter(settings, seed=seed) for seed in (0, 1))
    assert any(first.split_of(cell) != second.split_of(cell) for cell in cells)


def test_train_fraction_of_1_assigns_all_cells_and_empties_other_splits() -> None:
    splitter = Splitter(datasets.SplitConfig(train_fraction=1.0, val_fraction=0.0), seed=0)
    assert {splitter.split_of(str(i)) for i in range(500)} == {"train"}
    assert splitter.nonempty_splits() == ("train",)
    assert Splitter(datasets.SplitConfig(), seed=0).nonempty_splits() == ("train", "val", "test")


def test_same_place_in_two_scenes_has_the_same_cell_and_split() -> None:
    splitter = Splitter(datasets.SplitConfig(cell_size_tiles=2), seed=0)
    y, x = index_array(0, 64, 128), index_array(0, 64, 320)
    shifted = (10.0, 0.0, 300000.0 - 640.0, 0.0, -10.0, 4600000.0 + 1280.0)
    original = splitter.assign(y, x, size=64, place="EPSG:32632", transform=UTM)
    shifted_scene = splitter.assign(y + 128, x + 64, size=64, place="EPSG:32632", transform=shifted)
    assert original == shifted_scene
    other_zone = splitter.assign(y, x, size=64, place="EPSG:32633", transform=UTM)
    assert not set(original[0]) & set(other_zone[0])


def test_one_tile_scene_without_georeference_is_one_cell() -> None:
    splitter = Splitter(datasets.SplitConfig(cell_size_tiles=1), seed=0)
    cells, splits = splitter.assign(index_array(0), index_array(0), size=64, place="chip.npy", transform=None)
    assert cells == ["chip.npy/0/0"]
    assert splits[0] in ("train", "val", "test")


def test_cell_aligned_tile_has_a_split_and_tile_across_splits_has_none() -> None:
    splitter = Splitter(datasets.SplitConfig(train_fraction=0.5, val_fraction=0.0, cell_size_tiles=1), seed=0)
    tops = np.arange(0, 64 * 40, 64, dtype=np.int64)
    _, aligned = splitter.assign(tops, np.zeros_like(tops), size=64, place="scene", transform=None)
    assert None not in aligned
    _, between = splitter.assign(tops[:-1] + 32, np.zeros_like(tops[:-1]), size=64, place="scene", transform=None)
    for above, below, found in zip(aligned[:-1], aligned[1:], between, strict=True):
        assert found == (above if above == below else None)
    assert None in between
