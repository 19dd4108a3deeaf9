"""Tiles of georeferenced scenes: cells in meters by the command line, and conditions of tiles."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dithc.config import load
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.data import Tiles
from dithc.data.grids import degrees, reproject_points
from dithc.data.raster import write_geotiff
from dithc.data.tiles.conditions import day_of_year
from tests.data.tiles.test_tiles import Config, ingest_and_cut, rows_of
from tests.inputs.tables import read_rows

SIZE = 16


def cut(path: Path, out: Path) -> list[dict[str, Any]]:
    """Ingest and cut the dataset of a configuration; return the rows of its tiles."""
    ingest_and_cut(path, out)
    return rows_of(out)


def scene(path: Path, *, epsg: int, gsd: float, side: int, seed: int) -> None:
    """Create a scene of noise with its center at longitude 12 and latitude 47."""
    (x,), (y,) = reproject_points([12.0], [47.0], source_epsg=4326, target_epsg=epsg)
    half = side * gsd / 2
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(50, 900, (4, side, side), dtype=np.uint16)
    write_geotiff(path, pixels, transform=(gsd, 0.0, x - half, 0.0, -gsd, y + half), epsg=epsg)


def points_of(rows: list[dict[str, Any]], folder: Path, split: str) -> np.ndarray:
    """Return east and north (n, 2) in meters of the pixel centers of a split's tiles, from both tables."""
    scenes = {row["scene_id"]: row for row in read_rows(folder / "scenes" / "scenes.parquet")}
    found = []
    for row in rows:
        if row["split"] == split:
            a, _, c, _, e, f = scenes[row["scene_id"]]["transform"]
            v, u = np.mgrid[:SIZE, :SIZE].reshape(2, -1) + 0.5
            found.append(
                np.stack(degrees(a * (u + row["x"]) + c, e * (v + row["y"]) + f, crs=scenes[row["scene_id"]]["crs"]))
            )
    return np.concatenate(found, axis=1).T * [np.cos(np.radians(47.0)) * 111_320.0, 111_195.0]


def test_splits_share_no_place_across_utm_zones_and_datasets(tmp_path: Path, config: Config) -> None:
    from scipy.spatial import cKDTree

    files, places = tmp_path / "files", {}
    scene(files / "a.tif", epsg=32632, gsd=10.0, side=176, seed=0)
    scene(files / "b.tif", epsg=32633, gsd=10.0, side=176, seed=1)
    scene(tmp_path / "coarse" / "c.tif", epsg=32633, gsd=20.0, side=88, seed=2)
    rejected = num_moved = 0
    for name, folder in (("fine", files), ("coarse", tmp_path / "coarse")):
        path = config(
            source={"kind": "gaofen2", "path": str(folder), "bands": ["B", "G", "R", "NIR"]},
            rendering={"bands": ["R", "G", "B"], "low": 0, "high": 900},
            tiles={"size": SIZE},
            split={"train_fraction": 0.6, "val_fraction": 0.4, "cell_size_m": 700, "buffer_m": 50},
        )
        rows = cut(path, tmp_path / name)
        numbers = Manifest.read(tmp_path / name / "tiles" / "manifest.json").summary
        num_moved += numbers["moved"]
        rejected += sum(row["reason"] == "across_splits" for row in rows)
        assert numbers["rejected"].get("across_splits", 0) == sum(row["reason"] == "across_splits" for row in rows)
        for split in ("train", "val"):
            places[name, split] = points_of(rows, tmp_path / name, split)
    assert num_moved > 10
    train, val = (np.concatenate([places[name, split] for name in ("fine", "coarse")]) for split in ("train", "val"))
    assert cKDTree(train).query(val)[0].min() > 50.0  # meters between pixel centers
    both = cKDTree(places["fine", "train"]).query(places["coarse", "train"])[0]
    assert (both < 10.0).mean() > 0.5  # the same places are train places in both datasets


@pytest.mark.parametrize("kind", ["image-folder", "gaofen2"])
def test_cell_size_in_meters_without_georeference_is_reported(
    kind: str, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files" / "a.npy", np.random.default_rng(0).integers(50, 900, (4, 64, 64), dtype=np.uint16))
    source = {"kind": kind, "path": str(tmp_path / "files")}
    path = config(
        source=source, tiles={"size": SIZE}, split={"train_fraction": 1.0, "val_fraction": 0.0, "cell_size_m": 800}
    )
    if kind == "image-folder":
        with pytest.raises(UserError, match="no effect on an image-folder"):
            load(json.loads(path.read_text()))
        return
    cut(path, tmp_path)
    assert "no scene of 'A set' has a georeference" in capsys.readouterr().err


def test_tile_conditions_contain_position_day_and_sun_angles(safe_folder: Path, tmp_path: Path, config: Config) -> None:
    (product,) = safe_folder.glob("*.SAFE")
    granule = next(product.glob("GRANULE/*/MTD_TL.xml")).read_text()
    sun = re.search(r"<Mean_Sun_Angle>.*?</Mean_Sun_Angle>", granule, re.DOTALL)
    assert sun is not None
    zenith, azimuth = (float(text) for text in re.findall(r">([0-9.]+)</(?:ZENITH|AZIMUTH)_ANGLE", sun.group()))
    path = config(
        source={"kind": "sentinel2", "path": str(safe_folder)},
        rendering={"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3},
        tiles={"size": 32},
        split={"train_fraction": 1.0, "val_fraction": 0.0},
    )
    rows = [row for row in cut(path, tmp_path) if row["status"] == "accepted"]
    (scene_row,) = read_rows(tmp_path / "scenes" / "scenes.parquet")
    a, _, c, _, e, f = scene_row["transform"]
    sensing_time = np.datetime64(scene_row["sensing_time"].removesuffix("Z"))
    day = 1 + (sensing_time - sensing_time.astype("datetime64[Y]")) / np.timedelta64(1, "D")
    for row in rows:
        (longitude,), (latitude,) = reproject_points(
            [c + a * (row["x"] + 16)], [f + e * (row["y"] + 16)], source_epsg=scene_row["crs_epsg"], target_epsg=4326
        )
        assert (row["lon"], row["lat"]) == pytest.approx((longitude, latitude))
        assert (row["sun_elevation"], row["sun_azimuth"]) == pytest.approx((90 - zenith, azimuth))
        assert (row["gsd_m"], row["satellite"]) == (10.0, scene_row["satellite"])
        assert row["day_of_year"] == pytest.approx(day, abs=1e-6)
    tiles = Tiles(tmp_path / "tiles")
    names = [condition["name"] for condition in tiles.info["conditions"]]
    ready = dict(zip(names, tiles.column("conditions").T, strict=True))
    assert tiles.column("conditions").dtype == np.float32
    radian = 2 * np.pi / 360
    expected = {
        "lon_sin": [np.sin(radian * row["lon"]) for row in rows],
        "lon_cos": [np.cos(radian * row["lon"]) for row in rows],
        "lat": [row["lat"] / 90 for row in rows],
        "day_sin": np.sin(2 * np.pi * day / 365.2425),
        "day_cos": np.cos(2 * np.pi * day / 365.2425),
        "sun_elevation": (45 - zenith) / 45,
        "sun_azimuth_sin": np.sin(radian * azimuth),
        "sun_azimuth_cos": np.cos(radian * azimuth),
        "gsd": 0.0,
        "satellite": 0.0,
    }
    assert names == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(ready[name], values, atol=1e-6, err_msg=name)
    found = tiles.conditions()
    assert list(found) == ["place", "season", "sun", "gsd"]
    (row, lon, lat) = rows[3], *(radian * rows[3][name] for name in ("lon", "lat"))
    vector = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    np.testing.assert_allclose(found["place"][3], vector, atol=1e-6)
    values = {"place": [row["lon"], row["lat"]], "season": [row["day_of_year"]], "gsd": [10.0]}
    values["sun"] = [row["sun_elevation"], row["sun_azimuth"]]
    given = tiles.conditions_of(values)
    assert given.pop("view").argmax() == 0
    for name, numbers in given.items():
        np.testing.assert_allclose(numbers[0], found[name][3], atol=1e-6, err_msg=name)


def test_partly_missing_conditions_are_nan_and_absent_conditions_omitted(tmp_path: Path, config: Config) -> None:
    files = tmp_path / "files"
    scene(files / "a.tif", epsg=32632, gsd=4.0, side=32, seed=0)
    np.save(files / "b.npy", np.random.default_rng(1).integers(50, 900, (4, 32, 32), dtype=np.uint16))
    source = {"kind": "gaofen2", "path": str(files)}
    path = config(source=source, tiles={"size": SIZE}, split={"train_fraction": 1.0, "val_fraction": 0.0})
    rows = cut(path, tmp_path)
    tiles = Tiles(tmp_path / "tiles")
    assert [condition["name"] for condition in tiles.info["conditions"]] == ["lon_sin", "lon_cos", "lat", "gsd"]
    unknown = np.array([row["scene_id"] == "b.npy" for row in rows])
    assert unknown.sum() == 4
    np.testing.assert_array_equal(np.isnan(tiles.column("conditions")), unknown[:, None] & [True, True, True, False])
    np.testing.assert_allclose(tiles.column("conditions")[:, 3], np.log2(0.4), rtol=1e-6)
    assert {row["lon"] for row in rows if row["scene_id"] == "b.npy"} == {None}
    (files / "a.tif").unlink()
    assert not {"lon", "gsd_m", "satellite"} & cut(path, tmp_path)[0].keys()
    assert Tiles(tmp_path / "tiles").info["conditions"] == []
    assert not (tmp_path / "tiles" / "conditions.column.npy").exists()


@pytest.mark.parametrize(
    ("time", "day"),
    [
        ("2020-01-01T00:00:00Z", 1.0),
        ("2020-12-31 12:00:00", 366.5),
        ("2019-03-01T06:00:00.5Z", 60.25),
        ("?", None),
        (None, None),
    ],
)
def test_day_of_year_matches_the_timestamp(time: str | None, day: float | None) -> None:
    assert day_of_year(time) == (None if day is None else pytest.approx(day, abs=1e-5))


def test_tiles_moved_by_joined_cells_are_recompared(tmp_path: Path, config: Config) -> None:
    files = tmp_path / "files"
    files.mkdir()
    rough = np.random.default_rng(0).normal(size=(4, 12, 12)).repeat(16, axis=1).repeat(16, axis=2)  # (4, 192, 192)
    land = np.clip(400 + 150 * gaussian_filter(rough, (0, 3, 3)), 50, 800).astype(np.uint16)
    for name, (center, level) in {"a": ((12.0, 47.0), 1.0), "b": ((12.31, 47.22), 1.1)}.items():
        (x,), (y,) = reproject_points([center[0]], [center[1]], source_epsg=4326, target_epsg=32632)
        place = (10.0, 0.0, round(x), 0.0, -10.0, round(y))
        write_geotiff(files / f"{name}.tif", (land * level).astype(np.uint16), transform=place, epsg=32632)
    path = config(
        source={"kind": "gaofen2", "path": str(files), "bands": ["B", "G", "R", "NIR"]},
        rendering={"bands": ["R", "G", "B"], "low": 0, "high": 900},
        tiles={"size": SIZE},
        split={"train_fraction": 0.6, "val_fraction": 0.4, "cell_size_m": 700, "duplicates": "near"},
    )
    rows = cut(path, tmp_path)
    numbers = Manifest.read(tmp_path / "tiles" / "manifest.json").summary
    assert numbers["compared"] > len(rows)  # 2 x 144, and the tiles that have moved
    splits = {row["tile_id"]: row["split"] for row in rows if row["status"] == "accepted"}
    pairs = [(split, splits.get(name.replace("a.tif", "b.tif"))) for name, split in splits.items() if "a.tif" in name]
    assert sum(other is not None for _, other in pairs) > 100
    assert all(other in (None, split) for split, other in pairs)
