"""Tiles of georeferenced scenes: cells in metres through the command line, and the conditions that travel with tiles."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.cli import main
from dithc.config import load
from dithc.data.raster import degrees, reproject_points, write_geotiff
from dithc.data.table import read_rows
from dithc.log import UserError
from dithc.runs import Manifest

Config = Callable[..., Path]
SIZE = 16


def cut(path: Path, out: Path) -> list[dict[str, Any]]:
    """Stages and cuts the data set of a configuration; returns the rows of its tiles."""
    scenes, tiles = out / "scenes" / "manifest.json", out / "tiles" / "manifest.json"
    assert main(["stage", "--config", str(path), "--dataset", "set", "--out", str(scenes)]) == 0
    words = ["tiles", "--config", str(path), "--dataset", "set", "--scenes", str(scenes), "--out", str(tiles)]
    assert main(words) == 0
    return read_rows(out / "tiles" / "tiles.parquet")


def scene(path: Path, *, epsg: int, gsd: float, side: int, seed: int, at: tuple[float, float] = (12.0, 47.0)) -> None:
    """A scene of noise whose middle is at a longitude and latitude."""
    (x,), (y,) = reproject_points([at[0]], [at[1]], source_epsg=4326, target_epsg=epsg)
    half = side * gsd / 2
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(50, 900, (4, side, side), dtype=np.uint16)
    write_geotiff(path, pixels, transform=(gsd, 0.0, x - half, 0.0, -gsd, y + half), epsg=epsg)


def points_of(rows: list[dict[str, Any]], folder: Path, split: str) -> np.ndarray:
    """East and north, in metres, of the pixel centres of a split's tiles, (n, 2), from the table and the scenes' own table."""
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


def test_scenes_of_two_zones_and_two_data_sets_of_two_pixel_sizes_share_no_place_between_splits(
    tmp_path: Path, config: Config
) -> None:
    from scipy.spatial import cKDTree

    files, places = tmp_path / "files", {}
    scene(files / "a.tif", epsg=32632, gsd=10.0, side=176, seed=0)
    scene(files / "b.tif", epsg=32633, gsd=10.0, side=176, seed=1)
    scene(tmp_path / "coarse" / "c.tif", epsg=32633, gsd=20.0, side=88, seed=2)
    rejected = moved = 0
    for name, folder in (("fine", files), ("coarse", tmp_path / "coarse")):
        path = config(
            source={"kind": "gaofen2", "path": str(folder), "bands": ["B", "G", "R", "NIR"]},
            display={"bands": ["R", "G", "B"], "low": 0, "high": 900},
            tiles={"size": SIZE},
            split={"train": 0.6, "val": 0.4, "cell_m": 700, "buffer_m": 50},
        )
        rows = cut(path, tmp_path / name)
        numbers = Manifest.read(tmp_path / name / "tiles" / "manifest.json").numbers
        moved += numbers["moved"]
        rejected += sum(row["reason"] == "across_splits" for row in rows)
        assert numbers["rejected"].get("across_splits", 0) == sum(row["reason"] == "across_splits" for row in rows)
        for split in ("train", "val"):
            places[name, split] = points_of(rows, tmp_path / name, split)
    assert moved > 10
    train, val = (np.concatenate([places[name, split] for name in ("fine", "coarse")]) for split in ("train", "val"))
    assert cKDTree(train).query(val)[0].min() > 50.0  # metres, of pixel centres
    both = cKDTree(places["fine", "train"]).query(places["coarse", "train"])[0]
    assert (both < 10.0).mean() > 0.5  # the same places are train places in both


@pytest.mark.parametrize("kind", ["image-folder", "gaofen2"])
def test_cells_in_metres_without_places_are_refused_or_told(
    kind: str, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files" / "a.npy", np.random.default_rng(0).integers(50, 900, (4, 64, 64), dtype=np.uint16))
    source = {"kind": kind, "path": str(tmp_path / "files")}
    path = config(source=source, tiles={"size": SIZE}, split={"train": 1.0, "val": 0.0, "cell_m": 800})
    if kind == "image-folder":
        with pytest.raises(UserError, match="no effect on an image-folder"):
            load(json.loads(path.read_text()))
        return
    cut(path, tmp_path)
    assert "no scene of 'A set' has a georeference" in capsys.readouterr().err
