"""The stage `tiles` by the command line, and reading of the dataset."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.cli import main
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.data import Tiles, npy_writer, write_png
from dithc.data.parquet import TableWriter, read_columns
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.tiles.statistics import Histogram
from tests.inputs.images import read_rgb
from tests.inputs.tables import read_rows

BANDS = ["B", "G", "R", "NIR"]
SHOWN = {"bands": ["R", "G", "B"], "low": 0.0, "high": 1000.0}
Config = Callable[..., Path]


def scene(seed: int, height: int = 32, width: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(50, 900, (4, height, width), dtype=np.uint16)


def cut(path: Path, out: Path) -> int:
    scenes, tiles = (str(out / stage / "manifest.json") for stage in ("scenes", "tiles"))
    return main(["tiles", "--config", str(path), "--dataset", "set", "--scenes", scenes, "--out", tiles])


def ingest_and_cut(path: Path, out: Path) -> Tiles:
    """Ingest and cut the dataset of a configuration."""
    scenes = str(out / "scenes" / "manifest.json")
    assert main(["ingest", "--config", str(path), "--dataset", "set", "--out", scenes]) == 0
    assert cut(path, out) == 0
    return Tiles(out / "tiles")


def small(folder: Path, **settings: Any) -> dict[str, Any]:
    source = {"kind": "gaofen2", "path": str(folder)}
    return {"source": source, "rendering": SHOWN, "tiles": {"size": 8}, **settings}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


@pytest.fixture
def make(files: Path, tmp_path: Path, config: Config) -> Callable[..., Tiles]:
    """Stage and cut the scenes in `files`; return the dataset."""

    def run(**settings: Any) -> Tiles:
        return ingest_and_cut(config(**small(files, **settings)), tmp_path)

    return run


def rows_of(tmp_path: Path) -> list[dict[str, Any]]:
    return read_rows(tmp_path / "tiles" / "tiles.parquet")


def test_every_tile_contains_the_scene_pixels_at_the_tile_position(
    files: Path, tmp_path: Path, make: Callable[..., Tiles]
) -> None:
    np.save(files / "a.npy", scene(0, 20, 33))
    np.save(files / "b.npy", scene(1, 8, 8))
    np.save(files / "c.npy", scene(2, 8, 8))
    tiles = make(tiles={"size": 8, "stride": 5}, split={"train_fraction": 1.0, "val_fraction": 0.0})
    accepted = [row for row in rows_of(tmp_path) if row["status"] == "accepted"]
    assert tiles.count == len(accepted) == 3 * 6 + 2
    stored = tiles.stored(tiles.rows("all"))
    for number, row in enumerate(accepted):
        pixels = np.load(files / row["scene_id"])[:, row["y"] : row["y"] + 8, row["x"] : row["x"] + 8]
        np.testing.assert_array_equal(stored[number], pixels)
        assert row["tile_id"] == f"{row['scene_id']}/{row['y']:05d}_{row['x']:05d}"
        np.testing.assert_allclose(row["mean"], pixels.mean((1, 2)))
        np.testing.assert_allclose(row["std"], pixels.std((1, 2)))


@pytest.mark.parametrize("stride", [None, 5, 11])
def test_pixels_outside_all_tiles_are_counted_and_reported(
    files: Path, tmp_path: Path, make: Callable[..., Tiles], capsys: pytest.CaptureFixture[str], stride: int | None
) -> None:
    sides = {"a.npy": (20, 33), "b.npy": (8, 8), "c.npy": (7, 40), "d.npy": (24, 16)}
    for seed, (name, shape) in enumerate(sides.items()):
        np.save(files / name, scene(seed, *shape))
    tiles = make(tiles={"size": 8, "stride": stride}, split={"train_fraction": 1.0, "val_fraction": 0.0})
    reached = {name: np.zeros(shape, dtype=bool) for name, shape in sides.items()}
    for row in rows_of(tmp_path):
        if row["reason"] != "smaller_than_tile":
            reached[row["scene_id"]][row["y"] : row["y"] + 8, row["x"] : row["x"] + 8] = True
    outside = sum(int((~mask).sum()) for mask in reached.values())
    numbers = Manifest.read(tmp_path / "tiles" / "manifest.json", stage="tiles").summary
    for counts in (numbers, tiles.info["counts"]):
        assert (counts["uncovered_pixels"], counts["pixels"]) == (outside, 20 * 33 + 64 + 280 + 384)
    assert f"{outside} of {20 * 33 + 64 + 280 + 384} pixels" in capsys.readouterr().err


def test_rows_are_read_in_any_order_and_across_shards(
    files: Path, make: Callable[..., Tiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        np.save(files / f"{number}.npy", scene(number))
    monkeypatch.setattr(npy_writer, "SHARD_BYTES", 64 * 4 * 8 * 8 * 2)
    tiles = make(split={"train_fraction": 1.0, "val_fraction": 0.0})
    assert [shard["count"] for shard in tiles.info["shards"]] == [64, 16]
    order = np.array([70, 3, 64, 63, 3, 0])
    np.testing.assert_array_equal(tiles.stored(order), tiles.stored(tiles.rows("all"))[order])
    assert tiles.stored(np.array([], dtype=np.int64)).shape == (0, 4, 8, 8)


def test_limited_read_of_a_long_table_returns_evenly_spaced_row_groups(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "table", columns={"number": "int"}) as table:
        for number in range(40_000):
            table.add(number=number)
    everything = list(range(40_000))
    assert read_columns(tmp_path / "table", "number", "absent", most=10**6) == {"number": everything}
    found = read_columns(tmp_path / "table", "number", most=17_000)["number"]
    assert found == everything[:8192] + everything[2 * 8192 : 3 * 8192]
    assert read_columns(tmp_path / "table", "number", most=1)["number"] == everything[:8192]


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.uint8])
def test_histogram_percentiles_equal_numpy_at_the_ends_of_the_type(dtype: type[np.integer[Any]]) -> None:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(limits.min, limits.max, (3, 1, 5, 5), dtype=dtype, endpoint=True)
    values[0, 0, 0, :2] = limits.min, limits.max
    histogram = Histogram(1, dtype)
    valid = np.ones((3, 5, 5), bool)
    valid[1, 2] = False
    histogram.add(values, valid)
    (statistics,) = histogram.describe(scale=0.5, offset=3.0)
    chosen = values[:, 0][valid].astype(np.float64)
    np.testing.assert_allclose(statistics["p99"], np.percentile(chosen, 99) * 0.5 + 3.0)
    np.testing.assert_allclose(statistics["std"], chosen.std() * 0.5)
    (band,) = histogram.ranges([statistics], pixels=75, scale=0.5, offset=3.0)
    assert (band["min"], band["max"]) == (limits.min * 0.5 + 3.0, limits.max * 0.5 + 3.0)


def test_unscale_inverts_scaling_within_the_range_and_clips_outside(files: Path, make: Callable[..., Tiles]) -> None:
    np.save(files / "a.npy", scene(0))
    tiles = make(split={"train_fraction": 1.0, "val_fraction": 0.0})
    everything = tiles.rows("all")
    scaled = tiles.scaled(everything)
    assert scaled.dtype == np.float32
    assert (scaled.min(), scaled.max()) == (-1.0, 1.0)
    physical = tiles.stretch.physical(tiles.stored(everything))
    low = np.array([band["low"] for band in tiles.info["statistics"]]).reshape(1, 4, 1, 1)
    high = np.array([band["high"] for band in tiles.info["statistics"]]).reshape(1, 4, 1, 1)
    np.testing.assert_allclose(tiles.stretch.unscale(scaled), np.clip(physical, low, high), atol=1e-3)


def test_display_rounds_half_up_and_uses_rendering_bands_and_limits(files: Path, make: Callable[..., Tiles]) -> None:
    np.save(files / "a.npy", scene(0))
    shown = {"bands": ["R", "G", "B"], "low": [0.0, 0.0, 100.0], "high": [255.0, 510.0, 355.0]}
    tiles = make(split={"train_fraction": 1.0, "val_fraction": 0.0}, rendering=shown)
    physical = np.zeros((1, 4, 1, 4), np.float32)
    physical[0, 2, 0], physical[0, 1, 0], physical[0, 0, 0] = [-5, 0.4, 0.5, 300], [1, 2, 3, 509], [99, 101, 355, 356]
    rgb = tiles.stretch.display(physical)
    assert rgb.dtype == np.uint8
    np.testing.assert_array_equal(rgb[0, :, 0], [[0, 0, 1, 255], [1, 1, 2, 255], [0, 1, 255, 255]])
    np.testing.assert_array_equal(tiles.rgb(tiles.rows("all")), tiles.stretch.display(tiles.stored(tiles.rows("all"))))


def test_unusable_tiles_are_rejected_with_a_reason(files: Path, tmp_path: Path, make: Callable[..., Tiles]) -> None:
    pixels = scene(0)
    pixels[:, :8, :8] = 0
    pixels[:, :8, 8:16] = 300
    pixels[:, :1, 16:20] = 0
    np.save(files / "a.npy", pixels)
    np.save(files / "small.npy", scene(1, 7, 40))
    make(split={"train_fraction": 1.0, "val_fraction": 0.0}, tiles={"size": 8, "min_valid_fraction": 0.9})
    rows = {row["tile_id"]: row for row in rows_of(tmp_path)}
    assert len(rows) == 17
    assert rows["a.npy/00000_00000"]["reason"] == "too_little_valid"
    assert rows["a.npy/00000_00008"]["reason"] == "constant"
    assert rows["small.npy"]["reason"] == "smaller_than_tile"
    partly = rows["a.npy/00000_00016"]
    assert partly["status"] == "accepted"
    assert partly["valid_frac"] == 60 / 64
    valid = pixels[:, :8, 16:24].reshape(4, -1)[:, pixels[0, :8, 16:24].ravel() > 0]
    np.testing.assert_allclose(partly["mean"], valid.mean(1))
    numbers = Manifest.read(tmp_path / "tiles" / "manifest.json", stage="tiles").summary
    assert numbers["rejected"] == {"too_little_valid": 1, "constant": 1, "smaller_than_tile": 1}


def test_cloudy_tiles_of_a_product_are_rejected(safe_folder: Path, tmp_path: Path, config: Config) -> None:
    path = next(safe_folder.glob("*/GRANULE/*/IMG_DATA/*/*_SCL_20m.jp2"))
    classes, info = read_raster(path)
    classes[:] = 4
    classes[0, :16] = 9
    write_geotiff(path, classes, transform=info.transform, epsg=info.epsg or 0)
    path = config(
        source={"kind": "sentinel2", "path": str(safe_folder), "checksum": "skip"},
        rendering={"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3},
        tiles={"size": 32},
        split={"train_fraction": 1.0, "val_fraction": 0.0},
    )
    ingest_and_cut(path, tmp_path)
    assert [row["reason"] for row in rows_of(tmp_path)] == ["too_cloudy"] * 3 + [None] * 6


def _position_coded_pixels(places: np.ndarray, *, date: int) -> np.ndarray:
    """Create a scene (4, H, W) with the place (H, W) of each pixel in bands B and G, and the date in R."""
    bands = np.full((4, *places.shape), 100, np.uint16)
    bands[0], bands[1], bands[2] = 50 + places % 900, 50 + places // 900, 50 + date
    return bands


@pytest.mark.parametrize("stride", [8, 4, 3])
def test_overlapping_tiles_of_two_splits_share_no_pixels(files: Path, make: Callable[..., Tiles], stride: int) -> None:
    ground = np.arange(160 * 160).reshape(160, 160)
    left, top, gsd = 400013.0, 4400001.0, 4.0  # not on a border of cells
    for date, (y, x) in enumerate(((0, 0), (35, 22))):
        visible = _position_coded_pixels(ground[y : y + 96, x : x + 96], date=date)
        place = (gsd, 0, left + gsd * x, 0, -gsd, top - gsd * y)
        write_geotiff(files / f"{date}.tif", visible, transform=place, epsg=32650)
    np.save(files / "unplaced.npy", _position_coded_pixels(30_000 + ground[:72, :72], date=2))
    tiles = make(
        tiles={"size": 8, "stride": stride}, split={"train_fraction": 0.6, "val_fraction": 0.4, "cell_size_tiles": 3}
    )
    found = {}
    for split in ("train", "val"):
        pixels = tiles.stored(tiles.rows(split)).astype(np.int64) - 50
        found[split] = set((pixels[:, 0] + 900 * pixels[:, 1]).flatten().tolist())
    assert not found["train"] & found["val"]
    assert min(map(len, found.values())) > 3000
    distinct, cut_out = len(found["train"]), len(tiles.rows("train")) * 64
    assert cut_out > 0.7 * distinct * (8 / stride) ** 2


def test_tiles_of_one_place_at_two_dates_have_the_same_split(
    files: Path, tmp_path: Path, make: Callable[..., Tiles]
) -> None:
    for number, date in enumerate(("2020", "2021")):
        write_geotiff(
            files / f"{date}.tif", scene(number, 96, 96), transform=(4.0, 0, 400013.0, 0, -4.0, 4400001.0), epsg=32650
        )
    make(split={"train_fraction": 0.5, "val_fraction": 0.2, "cell_size_tiles": 2})
    found: dict[tuple[int, int], set[tuple[str | None, str]]] = {}
    for row in rows_of(tmp_path):
        found.setdefault((row["y"], row["x"]), set()).add((row["split"], row["cell"]))
    assert all(len(splits) == 1 for splits in found.values())
    reasons = [row["reason"] for row in rows_of(tmp_path)]
    assert reasons.count("across_splits") > 0
    assert len({row["split"] for row in rows_of(tmp_path)}) == 4  # three splits, and None across splits


def test_equal_tiles_have_the_split_of_the_first_tile(files: Path, tmp_path: Path, make: Callable[..., Tiles]) -> None:
    for number in range(20):
        np.save(files / f"{number:02d}.npy", scene(number % 10, 8, 8))
    make(split={"train_fraction": 0.5, "val_fraction": 0.2})
    rows = {row["scene_id"]: row for row in rows_of(tmp_path)}
    for number in range(10):
        first, second = rows[f"{number:02d}.npy"], rows[f"{number + 10:02d}.npy"]
        assert first["split"] == second["split"]
        assert second["duplicate_of"] == first["tile_id"]
        assert first["duplicate_of"] is None
    assert Manifest.read(tmp_path / "tiles" / "manifest.json").summary["duplicates"] == 10


def test_labels_and_classes_match_the_folder_names(tmp_path: Path, files: Path, config: Config) -> None:
    for name in ("river/1", "river/2", "field/1"):
        (files / name).parent.mkdir(exist_ok=True)
        write_png(files / f"{name}.png", np.random.default_rng(len(name)).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    path = config(
        source={"kind": "image-folder", "path": str(files), "size": 16},
        tiles={"size": 16},
        split={"train_fraction": 1.0, "val_fraction": 0.0},
    )
    tiles = ingest_and_cut(path, tmp_path)
    assert tiles.info["classes"] == ["field", "river"]
    assert tiles.labels.tolist() == [0, 1, 1]
    assert tiles.labels.dtype == np.int32


def test_grid_shows_at_most_64_tiles_with_eight_per_row(
    files: Path, tmp_path: Path, make: Callable[..., Tiles]
) -> None:
    for number in range(5):
        np.save(files / f"{number}.npy", scene(number))
    tiles = make(split={"train_fraction": 1.0, "val_fraction": 0.0})
    grid = read_rgb(tmp_path / "tiles" / "grid.png")
    assert grid.shape == (8 * 10 - 2, 8 * 10 - 2, 3)
    np.testing.assert_array_equal(grid[:8, :8], tiles.rgb(np.array([0]))[0].transpose(1, 2, 0))


def test_empty_validation_split_is_reported(
    files: Path, make: Callable[..., Tiles], capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(files / "a.npy", scene(0, 8, 8))
    tiles = make(split={"train_fraction": 0.999, "val_fraction": 0.0005})
    assert len(tiles.rows("val")) == 0
    assert "split 'val'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"tiles": {"size": 40}}, ["tile is larger than every scene", "40 x 40", "32 x 32", "tiles.size"]),
        (
            {"split": {"train_fraction": 0.0, "val_fraction": 1.0}},
            ["no tile is left for training", "split.train_fraction"],
        ),
        ({"tiles": {"size": 8, "min_std": 1e6}}, ["no tile is left for training", "16 constant"]),
        ({"rendering": {**SHOWN, "bands": ["B04", "G", "B"]}}, ["rendering.bands", "B04", "NIR"]),
        ({"rendering": {**SHOWN, "low": 1000.0}}, ["rendering", "low"]),
    ],
)
def test_impossible_settings_exit_with_2_and_preserve_old_output(
    files: Path,
    tmp_path: Path,
    make: Callable[..., Tiles],
    config: Config,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any],
    messages: list[str],
) -> None:
    np.save(files / "a.npy", scene(0))
    make(split={"train_fraction": 1.0, "val_fraction": 0.0})
    before = {path.name: path.read_bytes() for path in (tmp_path / "tiles").iterdir()}
    assert cut(config(**small(files, **settings)), tmp_path) == 2
    output = capsys.readouterr().err
    for message in [*messages, "got:", "expected:", "fix:"]:
        assert message in output
    assert {path.name: path.read_bytes() for path in (tmp_path / "tiles").iterdir()} == before


@pytest.mark.parametrize("damage", ["cut", "missing", "info", "version", "table", "column", "header"])
def test_damaged_dataset_is_rejected_with_a_fix(
    files: Path, tmp_path: Path, make: Callable[..., Tiles], damage: str
) -> None:
    np.save(files / "a.npy", scene(0))
    make(split={"train_fraction": 1.0, "val_fraction": 0.0})
    folder = tmp_path / "tiles"
    shard, info, table = folder / "shard-00000.npy", folder / "dataset.json", folder / "tiles.parquet"
    match damage:
        case "cut":
            os.truncate(shard, shard.stat().st_size - 8)
        case "missing":
            shard.unlink()
        case "info":
            info.write_text(info.read_text()[:50])
        case "version":
            info.write_text(json.dumps(json.loads(info.read_text()) | {"schema_version": 99}))
        case "table":
            os.truncate(table, table.stat().st_size // 2)
        case "column":
            os.truncate(folder / "split.column.npy", 130)
        case "header":
            shard.write_bytes(shard.read_bytes().replace(b"'<u2'", b"'<i2'", 1))

    def use() -> None:
        tiles = Tiles(folder)
        tiles.stored(tiles.rows("train"))
        tiles.accepted("tile_id")

    folder = folder.rename(tmp_path / "moved")  # out of reach of manifests that were read
    with pytest.raises(UserError, match=r"(?s)got:.*expected:.*fix:"):
        use()


def test_splits_and_labels_are_memory_mapped_without_the_table(
    files: Path, tmp_path: Path, make: Callable[..., Tiles]
) -> None:
    for number in range(6):
        np.save(files / f"{number}.npy", scene(number))
    tiles = make(split={"train_fraction": 0.5, "val_fraction": 0.25, "cell_size_tiles": 1})
    accepted = [row for row in rows_of(tmp_path) if row["status"] == "accepted"]
    (tmp_path / "tiles" / "tiles.parquet").unlink()
    assert [tiles.SPLITS[number] for number in tiles.column("split")] == [row["split"] for row in accepted]
    found = {split: tiles.rows(split).tolist() for split in tiles.SPLITS}
    assert sorted(row for rows in found.values() for row in rows) == list(range(tiles.count))
    assert not tiles.labels.flags.owndata


def test_statistics_cover_train_tiles_and_ranges_cover_each_split(files: Path, make: Callable[..., Tiles]) -> None:
    for number in range(12):
        pixels = scene(number) + number * 10
        pixels[:, :2, :3] = 0
        np.save(files / f"{number}.npy", pixels)
    tiles = make(
        split={"train_fraction": 0.5, "val_fraction": 0.25, "cell_size_tiles": 1},
        tiles={"size": 8, "min_valid_fraction": 0.5, "clip_fraction": 0.1},
    )
    assert set(tiles.info["ranges"]) == set(tiles.SPLITS)
    for split, bands in tiles.info["ranges"].items():
        stored = tiles.stored(tiles.rows(split)).astype(np.float64)
        valid = stored[:, 0] > 0
        for number, (ranges, statistics) in enumerate(zip(bands, tiles.info["statistics"], strict=True)):
            values = stored[:, number][valid]
            expected = [values.min(), *np.percentile(values, [1, 50, 99]), values.max(), 1 - valid.mean()]
            expected += [(values < statistics["low"]).mean(), (values > statistics["high"]).mean()]
            names = ("min", "p1", "median", "p99", "max", "invalid", "below", "above")
            np.testing.assert_allclose([ranges[name] for name in names], expected, rtol=1e-12, err_msg=split)
            if split == "train":
                expected = [values.mean(), values.std(), *np.percentile(values, [1, 99, 10, 90])]
                names = ("mean", "std", "p1", "p99", "low", "high")
                np.testing.assert_allclose([statistics[name] for name in names], expected, rtol=1e-12)
