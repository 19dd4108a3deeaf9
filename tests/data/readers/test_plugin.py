"""The example source plugin, from scenes to tiles, and its invalid results."""

import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.config import ExperimentConfig, load
from dithc.core.logging import UserError
from dithc.data import Tiles, cut_tiles, ingest_scenes
from dithc.data.readers import read_scenes
from dithc.data.scene import Rejection, Scene
from tests.plugin_packages import MODULE, install_example, install_plugin

BANDS = ["B", "G", "R", "NIR"]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example("custom_dataset", tmp_path, monkeypatch)
    install_plugin(
        tmp_path,
        monkeypatch,
        package="other",
        conditions=dict.fromkeys(["doubled", "view"], f"{MODULE}:DoubledConditions"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create four scenes of 160 pixels with the example."""
    from dithc_npz import write_scenes

    write_scenes(tmp_path / "scenes")
    return tmp_path / "scenes"


def experiment(folder: Path, *, conditions: list[dict[str, Any]] | None = None, **source: Any) -> ExperimentConfig:
    dataset = {"title": "A set", "source": {"kind": "npz", "path": str(folder), "bands": BANDS} | source, "codec": "c"}
    dataset |= {"rendering": {"bands": BANDS[2::-1], "low": 1000, "high": 3000}, "tiles": {"size": 32}}
    dataset |= {"conditions": conditions or [{"kind": "airmass"}]}
    return load({"datasets": {"d": dataset}, "codecs": {"c": {"kind": "pixel"}}})


def write(path: Path, pixels: Any, *, sun: float = 30.0) -> None:
    np.savez(path, pixels=pixels, time="2024-05-17T10:00:00", sun_elevation=sun)


def tiles_of(folder: Path, out: Path, **settings: Any) -> Tiles:
    dataset = experiment(folder, **settings).datasets["d"]
    ingest_scenes(dataset, folder, out=out / "staged")
    cut_tiles(dataset, out / "staged", out=out / "tiles", seed=0)
    return Tiles(out / "tiles")


def test_plugin_scenes_are_cut_into_tiles_with_conditions(folder: Path, tmp_path: Path) -> None:
    tiles = tiles_of(folder, tmp_path, conditions=[{"kind": "airmass"}, {"kind": "doubled"}])
    assert tiles.count == 4 * 25
    first = np.load(folder / "scene-0.npz")["pixels"]
    np.testing.assert_array_equal(tiles.stored(np.array([0]))[0], first[:, :32, :32])
    names = [condition["name"] for condition in tiles.info["conditions"]]
    ready = dict(zip(names, tiles.column("conditions").T, strict=True))
    angles = np.radians(np.repeat([30.0, 40.0, 50.0, 60.0], 25))
    np.testing.assert_allclose(ready["airmass"], 1.0 / np.sin(angles) - 1.0, rtol=1e-6)
    days = np.repeat([15, 46, 75, 106], 25) + 10 / 24  # 15 January, February, March, April of 2024, at ten
    np.testing.assert_allclose(ready["d"], (2 * days - 100) / 2, rtol=1e-6)
    np.testing.assert_array_equal(tiles.conditions()["doubled"], ready["d"][:, None])


@pytest.mark.parametrize(
    ("kind", "defect"), [("view", "none"), *product(["doubled"], ["raises", "length", "column", "inf", "map"])]
)
def test_broken_condition_plugin_is_rejected_before_tiles_are_cut(
    kind: str, defect: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"'{kind}' of dithc.conditions[\s\S]*fix"):
        tiles_of(folder, tmp_path, conditions=[{"kind": kind, "defect": defect}])
    assert not (tmp_path / "tiles").exists()


def test_invalid_scene_files_are_rejected_with_reasons(folder: Path) -> None:
    valid = np.ones((4, 8, 8), np.uint16)
    damage = {
        "0-float": (valid.astype(np.float32), "pixels of wrong type"),
        "1-bands": (valid[:3], "pixels of wrong shape"),
        "2-flat": (valid[0], "pixels of wrong shape"),
        "3-nodata": (0 * valid, "no pixel is valid"),
    }
    for name, (pixels, _) in damage.items():
        write(folder / f"{name}.npz", pixels)
    (folder / "4-cut.npz").write_bytes((folder / "scene-0.npz").read_bytes()[:1000])
    np.savez(folder / "5-empty.npz", other=valid)
    found = list(read_scenes(experiment(folder).datasets["d"].source, folder))
    errors = {item.path.stem: item.error.problem for item in found if isinstance(item, Rejection)}
    assert {name: title for name, title in errors.items() if name in damage} == {
        name: f"of an installed source: {title}" if "valid" not in title else title
        for name, (_, title) in damage.items()
    }
    assert {"4-cut", "5-empty"} <= errors.keys()
    assert sum(isinstance(item, Scene) for item in found) == 4


def test_scene_with_another_dtype_than_earlier_scenes_is_rejected(folder: Path, tmp_path: Path) -> None:
    write(folder / "z.npz", np.ones((4, 40, 40), np.uint8))
    numbers = ingest_scenes(experiment(folder).datasets["d"], folder, out=tmp_path / "staged")
    assert (numbers["accepted"], numbers["rejected"]) == (4, {"wrong_dtype": 1})


def test_folder_without_scenes_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no scene found in .*empty[\s\S]*files of npz"):
        read_scenes(experiment(tmp_path / "empty").datasets["d"].source, tmp_path / "empty")


def test_rendering_bands_missing_from_the_source_are_rejected(folder: Path) -> None:
    with pytest.raises(UserError, match=r"datasets.d.rendering.bands R, G, B: the source has A"):
        experiment(folder, bands=["A"])


def test_reader_survives_pickling_and_inspection_detects_changed_scenes(folder: Path) -> None:
    scenes = read_scenes(experiment(folder).datasets["d"].source, folder)
    copy = pickle.loads(pickle.dumps(scenes))
    for item, other in zip(scenes, copy, strict=True):
        assert item.sha256 == other.sha256
        np.testing.assert_array_equal(item.pixels, other.pixels)
    earlier = [scenes.inspect(position)[0] for position in range(4)]
    write(folder / "scene-2.npz", np.ones((4, 40, 40), np.uint16))
    later = [scenes.inspect(position)[0] for position in range(4)]
    assert [item == other for item, other in zip(earlier, later, strict=True)] == [True, True, False, True]
