"""The figure of a dataset of tiles: its content, and its legibility."""

import json
from pathlib import Path

import numpy as np
import pytest

from dithc.cli import main
from dithc.data import Tiles
from dithc.report.figures.tiles import TileOutcome, TileSet, read_tiles, tiles_figure
from tests.report.texts import assert_legible, text_boxes

BANDS = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]


def tile_set(*, latitude: float, count: int = 40, ranges: bool = True) -> TileSet:
    """Return a tile set around a location."""
    random = np.random.default_rng(0)
    picture = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
    mask = random.integers(0, 3, (16, 16), dtype=np.uint8)
    outcomes = [
        TileOutcome(name=name, count=123_456, accepted=True, pictures=[(picture, None)] * 8) for name in Tiles.SPLITS
    ]
    outcomes += [
        TileOutcome(name=name, count=7, accepted=False, pictures=[(picture, mask)] * 3)
        for name in ("too_little_valid", "smaller_than_tile", "across_splits")
    ]
    band = {
        "min": -0.01,
        "p1": 0.0,
        "median": 0.1,
        "p99": 0.4,
        "max": 1.7,
        "below": 0.01,
        "above": 0.01,
        "invalid": 0.0,
    }
    locations = {
        name: np.array([[179.0, latitude]]) + random.uniform(0, 0.3, (count, 2)) for name in (*Tiles.SPLITS, "rejected")
    }
    return TileSet(
        title="Sentinel-2 L1C (13 bands, 10 m)",
        outcomes=outcomes,
        locations=locations if count else {},
        side_m=2560.0,
        cells=[((179.0, latitude, 179.1, latitude + 0.1), "val")],
        units="reflectance",
        ranges={name: [{"band": one, **band} for one in BANDS] for name in Tiles.SPLITS} if ranges else {},
    )


@pytest.mark.parametrize(("latitude", "count", "ranges"), [(1.0, 40, True), (78.0, 1, False), (50.0, 0, False)])
@pytest.mark.slow
def test_texts_of_the_figure_are_legible(latitude: float, count: int, ranges: bool, monkeypatch) -> None:
    tiles = tile_set(latitude=latitude, count=count, ranges=ranges)
    page, boxes = text_boxes(lambda: tiles_figure(tiles), monkeypatch)
    texts = {text.get_text() for text in boxes}
    assert {"■ cloud", "■ no data"} <= texts
    assert any("smaller\nthan\ntile" in text for text in texts)
    assert any(text.endswith(" km") for text in texts) == bool(count)
    assert ("clipped low" in texts) == ranges
    assert_legible(page, boxes)


@pytest.mark.slow
def test_examples_of_accepted_and_rejected_tiles_include_masks(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(50, 900, (4, 24, 24), dtype=np.uint16)
        pixels[:, :8, :8] = 0
        np.save(tmp_path / "files" / f"{number}.npy", pixels)
    dataset = {
        "title": "A set",
        "codec": "none",
        "source": {"kind": "gaofen2", "path": str(tmp_path / "files")},
        "tiles": {"size": 8},
        "split": {"train_fraction": 0.5, "val_fraction": 0.5, "cell_size_tiles": 1},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"datasets": {"set": dataset}, "codecs": {"none": {"kind": "pixel"}}}))
    options = ["--config", str(config), "--dataset", "set"]
    assert main(["ingest", *options, "--out", str(tmp_path / "scenes" / "set" / "manifest.json")]) == 0
    scenes, tiles = tmp_path / "scenes" / "set", tmp_path / "tiles" / "set"
    assert (
        main(["tiles", *options, "--scenes", str(scenes / "manifest.json"), "--out", str(tiles / "manifest.json")]) == 0
    )
    found = read_tiles(tiles, title="A set", scenes=scenes)
    assert {outcome.name: (outcome.count, outcome.accepted) for outcome in found.outcomes if not outcome.accepted} == {
        "too_little_valid": (6, False)
    }
    for outcome in found.outcomes:
        assert len(outcome.pictures) == min(8, outcome.count)
        for picture, mask in outcome.pictures:
            assert mask is not None
            assert (picture.shape, mask.any()) == ((8, 8, 3), outcome.accepted)
    rows = Tiles(tiles).rows("train")
    np.testing.assert_array_equal(found.outcomes[0].pictures[0][0], Tiles(tiles).rgb(rows[:1])[0].transpose(1, 2, 0))
    without_scenes = read_tiles(tiles, title="A set", scenes=None)
    np.testing.assert_array_equal(without_scenes.outcomes[0].pictures[-1][0], found.outcomes[0].pictures[-1][0])
    assert [len(outcome.pictures) > 0 for outcome in without_scenes.outcomes] == [True, True, False]
    assert (without_scenes.locations, set(without_scenes.ranges)) == ({}, {"train", "val"})
    assert main(["show", str(tiles), "--png", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
