"""The stage `scenes` by the command line: output, records, and data that it never destroys."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.cli import main
from dithc.core.artifacts import Manifest
from dithc.data.raster import write_geotiff
from dithc.data.scenes import stacks
from tests.data.readers.scene_readers import land
from tests.inputs.tables import read_rows

BANDS = ["B02", "B03", "B04", "B08"]
PLACE: dict[str, Any] = {"epsg": 32632}
Config = Callable[..., Path]


def array_source(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"kind": "sentinel2-array", "path": str(folder), "bands": BANDS, "units": "dn", "offset": 0, **changes}


def stage(path: Path, out: Path) -> int:
    return main(["ingest", "--config", str(path), "--dataset", "set", "--out", str(out / "manifest.json")])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(4):
        np.save(folder / f"{number}.npy", land(number))
    np.save(folder / "wide.npy", land(9, width=20))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_scenes_of_one_shape_share_a_stack_and_every_file_has_a_row(
    files: Path, tmp_path: Path, config: Config
) -> None:
    out = tmp_path / "out"
    assert stage(config(source=array_source(files)), out) == 0
    index = json.loads((out / "scenes.json").read_text())
    rows = read_rows(out / "scenes.parquet")
    assert [stack["count"] for stack in index["stacks"]] == [4, 1]
    assert index["bands"] == BANDS
    assert (index["units"], index["scale"], index["dtype"]) == ("reflectance", 1e-4, "int16")
    for row in rows:
        stack = np.load(out / f"stack-{row['stack']:05d}.npy", mmap_mode="r")
        np.testing.assert_array_equal(stack[row["row"]], np.load(files / row["path"]))
    manifest = Manifest.read(out / "manifest.json", stage="ingest")
    assert manifest.summary["accepted"] == 5
    assert manifest.verify(out) == []


def test_unusable_files_are_recorded_with_reason_and_ingestion_continues(
    files: Path, tmp_path: Path, config: Config
) -> None:
    (files / "1.npy").write_bytes(b"no array")
    np.save(files / "2.npy", land().transpose(1, 2, 0))
    assert stage(config(source=array_source(files)), tmp_path / "out") == 0
    rows = {row["scene_id"]: row for row in read_rows(tmp_path / "out" / "scenes.parquet")}
    assert {name: row["reason"] for name, row in rows.items() if row["status"] == "rejected"} == {
        "1.npy": "read_error",
        "2.npy": "wrong_layout",
    }
    assert all(rows["2.npy"][key] for key in ("problem", "got", "expected", "fix"))
    numbers = Manifest.read(tmp_path / "out" / "manifest.json").summary
    assert numbers["rejected"] == {"read_error": 1, "wrong_layout": 1}


def test_too_many_unusable_files_exit_with_2_and_preserve_old_output(
    files: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(source=array_source(files))
    assert stage(path, tmp_path / "out") == 0
    before = content(tmp_path / "out")
    for number in range(3):
        np.save(files / f"{number}.npy", np.zeros((4, 16, 16), np.uint16))
    assert stage(path, tmp_path / "out") == 2
    stderr = capsys.readouterr().err
    for text in ("3 of 5", "all_nodata", "0.npy", "got:", "expected:", "fix:", "max_rejected_fraction"):
        assert text in stderr
    assert content(tmp_path / "out") == before
    assert [path.name for path in tmp_path.glob(".out*")] == [".out.partial"], "what was read is kept for the next run"


def test_file_contradicting_the_declared_offset_stops_the_ingestion(
    files: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(source=array_source(files), max_rejected_fraction=1.0)
    (files / "0.npy").write_bytes(b"no array")
    assert stage(path, tmp_path / "out") == 0
    before = content(tmp_path / "out")
    np.save(files / "1.npy", land() + 1000)
    assert stage(path, tmp_path / "out") == 2
    stderr = capsys.readouterr().err
    for text in ("1 of 5 files", "contradict the declared offset", "1.npy", "offset: -1000", "two datasets"):
        assert text in stderr
    assert content(tmp_path / "out") == before


def test_full_disk_exits_with_2_and_preserves_old_output(
    files: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(source=array_source(files))
    assert stage(path, tmp_path / "out") == 0
    before = content(tmp_path / "out")

    def full(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if ".tmp." in path and "lease" not in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert stage(path, tmp_path / "out") == 2
    stderr = capsys.readouterr().err
    for text in ("disk is full", "got:", "No space left on device", "expected:", "fix:"):
        assert text in stderr
    assert content(tmp_path / "out") == before
    assert not list(tmp_path.glob(".out*"))


def test_output_folder_with_user_files_is_not_replaced(
    files: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage(config(source=array_source(files)), tmp_path) == 2
    assert "config.json" in capsys.readouterr().err
    assert files.exists()


@pytest.mark.parametrize("make", ["absent", "empty"])
def test_missing_or_empty_source_folder_exits_with_2(
    tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str], make: str
) -> None:
    folder = tmp_path / "files"
    if make == "empty":
        folder.mkdir()
    assert stage(config(source=array_source(folder)), tmp_path / "out") == 2
    stderr = capsys.readouterr().err
    assert all(text in stderr for text in ("got:", "expected:", "fix:", str(folder)))
    assert not (tmp_path / "out").exists()


def test_scene_with_a_different_pixel_size_is_rejected(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, gsd in (("a", 10.0), ("b", 10.0), ("c", 20.0)):
        write_geotiff(folder / f"{name}.tif", land(), transform=(gsd, 0, 3e5, 0, -gsd, 4.6e6), **PLACE)
    assert stage(config(source=array_source(folder)), tmp_path / "out") == 0
    rows = {row["scene_id"]: row["reason"] for row in read_rows(tmp_path / "out" / "scenes.parquet")}
    assert rows == {"a.tif": None, "b.tif": None, "c.tif": "resolution_mismatch"}


def test_stacks_are_closed_if_too_many_shapes_are_open(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "OPEN_STACKS", 2)
    monkeypatch.setattr(stacks, "SCENES_PER_STACK", 2)
    folder = tmp_path / "files"
    folder.mkdir()
    for number, side in enumerate([8, 9, 10, 8, 8, 8, 10]):
        np.save(folder / f"{number}.npy", land(number, height=side, width=side))
    assert stage(config(source=array_source(folder)), tmp_path / "out") == 0
    index = json.loads((tmp_path / "out" / "scenes.json").read_text())
    assert [stack["count"] for stack in index["stacks"]] == [1, 1, 2, 2, 1]
    for row in read_rows(tmp_path / "out" / "scenes.parquet"):
        stack = np.load(tmp_path / "out" / index["stacks"][row["stack"]]["file"])
        np.testing.assert_array_equal(stack[row["row"]], np.load(folder / row["path"]))


def test_generated_input_requires_the_inputs_manifest(
    tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(source={"kind": "image-folder", "size": 16, "synthetic": {"scenes": 2, "size": 24, "classes": 2}})
    assert stage(path, tmp_path / "out") == 2
    assert "--inputs" in capsys.readouterr().err
    inputs = tmp_path / "inputs" / "manifest.json"
    assert main(["synthesize", "--config", str(path), "--dataset", "set", "--out", str(inputs)]) == 0
    arguments = ["ingest", "--config", str(path), "--dataset", "set", "--inputs", str(inputs)]
    assert main([*arguments, "--out", str(tmp_path / "out" / "manifest.json")]) == 0
    manifest = Manifest.read(tmp_path / "out" / "manifest.json")
    assert manifest.inputs == {str(inputs): Manifest.read(inputs).digest}
    assert manifest.summary["accepted"] >= 4


def test_scene_table_does_not_depend_on_the_source_folder_path(files: Path, tmp_path: Path, config: Config) -> None:
    (files / "1.npy").write_bytes(b"no array")
    tables = []
    for location in (files, tmp_path / "moved" / "elsewhere"):
        if not location.exists():
            shutil.copytree(files, location)
        assert stage(config(source=array_source(location)), tmp_path / "out") == 0
        rows = read_rows(tmp_path / "out" / "scenes.parquet")
        assert str(location) not in repr(rows)
        tables.append((tmp_path / "out" / "scenes.parquet").read_bytes())
    assert tables[0] == tables[1]


def test_files_of_a_minority_data_type_are_rejected(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, dtype in {"a": np.uint16, "b": np.uint16, "c": np.uint8, "d": np.float32, "g": np.uint16}.items():
        write_geotiff(
            folder / f"{name}.tif",
            land()[:1].astype(dtype) % 200 + 1,
            transform=(10.0, 0.0, 5e5, 0.0, -10.0, 5e6),
            **PLACE,
        )
    write_geotiff(folder / "e.tif", land()[:2], transform=(10.0, 0.0, 5e5, 0.0, -10.0, 5e6), **PLACE)
    np.save(folder / "f.npy", land())
    source = {"kind": "geotiff", "path": str(folder), "bands": ["x"], "units": "reflectance", "scale": 1e-4}
    path = config(source=source, rendering={"bands": ["x"] * 3, "low": 0, "high": 1}, max_rejected_fraction=0.9)
    assert stage(path, tmp_path / "out") == 0
    rows = {row["path"]: row for row in read_rows(tmp_path / "out/scenes.parquet")}
    assert {name: row["status"] == "accepted" for name, row in rows.items()} == {
        **dict.fromkeys(("a.tif", "b.tif", "g.tif"), True),
        **dict.fromkeys(("c.tif", "d.tif", "e.tif"), False),
    }
    assert [(rows[name]["reason"], rows[name]["got"]) for name in ("c.tif", "d.tif")] == [
        ("wrong_dtype", "uint8"),
        ("wrong_dtype", "float32"),
    ]
    assert rows["a.tif"]["dtype"] == "uint16"
    assert Manifest.read(tmp_path / "out/manifest.json", stage="ingest").summary["left_out"] == {".npy": 1}
    (folder / "g.tif").unlink()
    assert stage(path, tmp_path / "half") == 2, "two files of each type do not show which is meant"
