"""The stage `scenes` after an interruption or change: unchanged scenes are reused, with the same result."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import reproject

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import ingest_scenes, synthesize
from dithc.data.grids import Grid
from dithc.data.images import write_png
from dithc.data.readers.gaofen2 import reader as gaofen2
from dithc.data.readers.sentinel2 import arrays as sentinel2_array
from dithc.data.readers.sentinel2.safe_grid import doubled, regrid
from dithc.data.scenes import stacks
from dithc.data.scenes.reading import Scenes
from dithc.data.scenes.scene_cache import RECORD_FILE
from tests.data.readers.scene_readers import land
from tests.inputs.tables import read_rows

BANDS = ["B02", "B03", "B04", "B08"]
SHOWN = {"bands": BANDS[:3], "low": 0.0, "high": 0.3}


def dataset(folder: Path, **source: Any) -> datasets.DatasetConfig:
    kind: dict[str, Any] = {"kind": "sentinel2-array", "bands": BANDS, "units": "dn", "offset": 0, "path": str(folder)}
    chosen = source if "kind" in source else {**kind, **source}
    return datasets.DatasetConfig.model_validate(
        {
            "title": "A set",
            "codec": "none",
            "rendering": SHOWN,
            "source": {"path": str(folder), **chosen},
            "max_rejected_fraction": 0.6,
        }
    )


def stage_output(folder: Path) -> dict[str, bytes]:
    """Return all output of a stage except its record, which contains times."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != RECORD_FILE}


def from_scratch(settings: datasets.DatasetConfig, folder: Path, out: Path) -> dict[str, bytes]:
    ingest_scenes(settings, folder, out=out / "scratch")
    found = stage_output(out / "scratch")
    shutil.rmtree(out / "scratch")
    return found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Create nine files of two widths, one unreadable, one with no-data pixels in the middle of its stack."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(8):
        np.save(folder / f"{number}.npy", land(number, width=20 if number == 3 else 16))
    clouded = land(5)
    clouded[:, 4:7, 2:9] = 0
    np.save(folder / "5.npy", clouded)
    (folder / "8.npy").write_bytes(b"no array")
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the names of files read by readers of plain arrays, in order; a name in `stop` interrupts."""
    names: list[str] = []
    plain = sentinel2_array.Sentinel2ArrayReader.read

    def spied(self: sentinel2_array.Sentinel2ArrayReader, path: Path) -> Any:
        if f"stop at {path.name}" in names:
            raise KeyboardInterrupt
        names.append(path.name)
        return plain(self, path)

    monkeypatch.setattr(sentinel2_array.Sentinel2ArrayReader, "read", spied)
    return iter([names])


def interrupt_ingestion(
    settings: datasets.DatasetConfig, files: Path, out: Path, names: list[str], *, name: str
) -> None:
    names.append(f"stop at {name}")
    with pytest.raises(KeyboardInterrupt):
        ingest_scenes(settings, files, out=out)
    names.clear()


def test_resumed_ingestion_reads_only_missing_scenes_with_the_same_result(
    files: Path, tmp_path: Path, read: Iterator[list[str]]
) -> None:
    (names,) = read
    settings, out = dataset(files), tmp_path / "out"
    truth = from_scratch(settings, files, tmp_path)
    interrupt_ingestion(settings, files, out, names, name="4.npy")
    assert not out.exists()
    interrupt_ingestion(settings, files, out, names, name="7.npy")
    ingest_scenes(settings, files, out=out)
    assert names == ["7.npy", "8.npy"]
    assert stage_output(out) == truth
    assert not list(tmp_path.glob(".out*"))


def test_only_added_changed_or_rejected_scenes_are_reread(
    files: Path, tmp_path: Path, read: Iterator[list[str]]
) -> None:
    (names,) = read
    settings, out = dataset(files), tmp_path / "out"

    def reread() -> list[str]:
        names.clear()
        ingest_scenes(settings, files, out=out)
        found = [*names]
        assert stage_output(out) == from_scratch(settings, files, tmp_path)
        return found

    assert len(reread()) == 9
    assert reread() == ["8.npy"], "what was refused may be well now"
    np.save(files / "35.npy", land(35))
    assert reread() == ["35.npy", "8.npy"]
    (files / "2.npy").unlink()
    assert reread() == ["8.npy"]
    before = (files / "1.npy").stat()
    np.save(files / "1.npy", land(11))
    os.utime(files / "1.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (files / "1.npy").stat().st_size == before.st_size
    assert reread() == ["1.npy", "8.npy"], "as large as before, and with its time: changed all the same"
    shutil.copy(files / "0.npy", files / "8.npy")
    assert reread() == ["8.npy"]
    assert reread() == []


def flip_bit(path: Path, index: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[index] ^= 1
    path.unlink()  # the bytes of the old file may be in use elsewhere
    path.write_bytes(damaged)


@pytest.mark.parametrize("damage", ["pixel", "mask", "line", "length", "gone"])
@pytest.mark.parametrize("state", ["partial", "finished"])
def test_damaged_cached_scenes_are_reread(
    files: Path, tmp_path: Path, read: Iterator[list[str]], state: str, damage: str
) -> None:
    (names,) = read
    settings, out = dataset(files), tmp_path / "out"
    truth = from_scratch(settings, files, tmp_path)
    if state == "partial":
        interrupt_ingestion(settings, files, out, names, name="8.npy")
        (folder,) = filter(Path.is_dir, (tmp_path / ".out.partial").iterdir())
    else:
        ingest_scenes(settings, files, out=out)
        folder = out
    names.clear()
    stack, size = folder / "stack-00000.npy", land(0).nbytes
    if damage == "pixel":
        flip_bit(stack, 128 + 3 * size + 77)  # the fourth scene of 16 x 16: 4.npy
    elif damage == "mask":
        flip_bit(folder / "stack-00000.mask.npy", 128 + 4 * 256 + 5 * 16 + 3)
    elif damage == "line":
        text = (folder / RECORD_FILE).read_text()
        (folder / RECORD_FILE).write_text(text.replace('"id": "6.npy"', '"id": "7.npy"'))
    elif damage == "length":
        os.truncate(stack, 128 + 6 * size + 1)
    else:
        stack.unlink()
    ingest_scenes(settings, files, out=out)
    reread = {"pixel": ["4.npy"], "mask": ["5.npy"], "line": ["6.npy"], "length": ["7.npy"]}
    all_of_it = [f"{number}.npy" for number in range(8) if number != 3]
    assert names == [*reread.get(damage, all_of_it), "8.npy"]
    assert stage_output(out) == truth


def test_scenes_cached_with_different_settings_are_reread(
    files: Path, tmp_path: Path, read: Iterator[list[str]]
) -> None:
    (names,) = read
    interrupt_ingestion(dataset(files), files, tmp_path / "out", names, name="6.npy")
    changed = dataset(files, quantification=5000.0)
    ingest_scenes(changed, files, out=tmp_path / "out")
    assert len(names) == 9
    assert stage_output(tmp_path / "out") == from_scratch(changed, files, tmp_path)


def test_changed_cloud_mask_file_causes_a_reread_of_the_scene(
    files: Path, tmp_path: Path, read: Iterator[list[str]]
) -> None:
    (names,) = read
    (files / "8.npy").unlink()
    settings, out = dataset(files, clouds={"mask": {}}), tmp_path / "out"
    for path in sorted(files.glob("?.npy")):
        np.save(path.with_name(f"{path.stem}_mask.npy"), np.zeros(np.load(path).shape[1:], np.uint8))
    ingest_scenes(settings, files, out=out)
    names.clear()
    np.save(files / "2_mask.npy", np.ones((16, 16), np.uint8))
    ingest_scenes(settings, files, out=out)
    assert names == ["2.npy"]
    assert stage_output(out) == from_scratch(settings, files, tmp_path)


def test_reused_gaofen2_scene_preserves_all_metadata(
    raw_gaofen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next((raw_gaofen / "products").glob("*.tar.gz")).unlink()
    products, out = raw_gaofen / "products", tmp_path / "out"
    sharp = {"gsd_m": 0.81, "pansharpen": "gsa", "max_shift": 5.0, "calibrate": "radiance"}
    settings = dataset(products, kind="gaofen2", height_m=120.0, **sharp)
    assert ingest_scenes(settings, products, out=out)["accepted"] == 1
    truth = stage_output(out)
    monkeypatch.setattr(gaofen2.Gaofen2Reader, "read", None)
    ingest_scenes(settings, products, out=out)
    assert stage_output(out) == truth
    assert {"ergas", "gains"} <= read_rows(out / "scenes.parquet")[0].keys()


@pytest.mark.slow
def test_one_and_two_processes_produce_identical_output_and_rejections(tmp_path: Path) -> None:
    files = tmp_path / "files"
    synthesize("sentinel2", files, seed=3, scenes=3, size=96)
    damaged = next(sorted(files.glob("*.SAFE"))[1].rglob("*_B08_10m.jp2"))
    os.truncate(damaged, damaged.stat().st_size * 2 // 3)
    settings = dataset(files, kind="sentinel2", checksum="skip")
    numbers = [ingest_scenes(settings, files, out=tmp_path / f"{threads}", threads=threads) for threads in (1, 2)]
    assert stage_output(tmp_path / "1") == stage_output(tmp_path / "2")
    assert numbers[0] == numbers[1]
    assert numbers[0]["rejected"] == {"read_error": 1}
    assert not list(tmp_path.glob(".2*"))


def test_stack_filling_scene_is_written_in_place_and_hard_linked_on_rerun(
    safe_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = dataset(safe_folder, kind="sentinel2"), tmp_path / "out"
    truth = from_scratch(settings, safe_folder, tmp_path)
    monkeypatch.setattr(stacks, "SHARD_BYTES", 100_000)
    painted: list[tuple[int, ...]] = []
    blank = stacks.FileCanvas.blank

    def spied(self: stacks.FileCanvas, shape: tuple[int, ...], dtype: Any) -> Any:
        painted.append(shape)
        return blank(self, shape, dtype)

    monkeypatch.setattr(stacks.FileCanvas, "blank", spied)
    ingest_scenes(settings, safe_folder, out=out)
    assert painted == [(12, 96, 96)]
    assert stage_output(out) == truth
    inode = (out / "stack-00000.npy").stat().st_ino
    ingest_scenes(settings, safe_folder, out=out)
    assert (out / "stack-00000.npy").stat().st_ino == inode
    assert stage_output(out) == truth
    (product,) = safe_folder.glob("*.SAFE")
    last = next(product.rglob("*_B12_20m.jp2"))
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(Exception, match="1 of 1 scenes"):
        ingest_scenes(settings, safe_folder, out=out)
    assert stage_output(out) == truth
    assert not list(tmp_path.glob(".out*"))


def test_failed_rerun_without_hard_links_preserves_finished_stacks(
    safe_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = dataset(safe_folder, kind="sentinel2"), tmp_path / "out"
    monkeypatch.setattr(stacks, "SHARD_BYTES", 100_000)

    def fail_link(old: Path, new: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", fail_link)
    ingest_scenes(settings, safe_folder, out=out)
    truth = stage_output(out)
    broken = safe_folder / f"{next(safe_folder.glob('*.SAFE')).name}-x.SAFE"
    broken.mkdir()
    strict = settings.model_copy(update={"max_rejected_fraction": 0.0})
    with pytest.raises(Exception, match="1 of 2 scenes"):
        ingest_scenes(strict, safe_folder, out=out)
    assert stage_output(out) == truth


def test_full_disk_stops_the_stage_and_leaves_no_output(
    safe_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataset(safe_folder, kind="sentinel2")
    monkeypatch.setattr(stacks, "SHARD_BYTES", 100_000)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"disk|space"):
        ingest_scenes(settings, safe_folder, out=tmp_path / "out")
    assert list(tmp_path.glob("*out*")) == []


def test_partial_folder_with_user_files_is_rejected_and_unchanged(files: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / "note.txt").write_text("mine")
    with pytest.raises(UserError, match=r"note\.txt"):
        ingest_scenes(dataset(files), files, out=tmp_path / "out")
    assert (partial / "note.txt").read_text() == "mine"
    (partial / "note.txt").unlink()
    ingest_scenes(dataset(files), files, out=tmp_path / "out")
    assert not partial.exists()


def test_only_stacks_with_invalid_pixels_have_a_mask_file(files: Path, tmp_path: Path) -> None:
    ingest_scenes(dataset(files), files, out=tmp_path / "out")
    index = json.loads((tmp_path / "out" / "scenes.json").read_text())
    assert index["schema_version"] == 2
    assert [stack["mask"] for stack in index["stacks"]] == ["stack-00000.mask.npy", None]
    assert not (tmp_path / "out" / "stack-00001.mask.npy").exists()
    scenes = Scenes(tmp_path / "out")
    masks = {name: scenes.mask_of(number) for number, name in enumerate(scenes.columns["scene_id"])}
    truth = np.ones((16, 16), np.uint8)
    truth[4:7, 2:9] = 0
    for name, mask in masks.items():
        expected = truth if name == "5.npy" else np.ones((16, 20 if name == "3.npy" else 16), np.uint8)
        np.testing.assert_array_equal(mask, expected)
        assert mask.dtype == np.uint8


@pytest.mark.parametrize("holes", [0.0, 0.02, 0.9])
@pytest.mark.parametrize("corner", [(399960.0, 4900020.0), (699960.0, 10000020.0)])
def test_doubled_bands_equal_gdal_bilinear_resampling(corner: tuple[float, float], holes: float) -> None:
    rng = np.random.default_rng(0)
    native = rng.integers(1, 65535, (150, 131)).astype(np.uint16)
    native[rng.random(native.shape) < holes] = 0
    native[:40, :30] = 0 if holes else 7
    left, top = corner
    shape = (2 * native.shape[0], 2 * native.shape[1])
    grid = Grid(crs="EPSG:32632", epsg=32632, transform=(10.0, 0.0, left, 0.0, -10.0, top), shape=shape)
    truth = regrid(native, transform=(20.0, 0.0, left, 0.0, -20.0, top), grid=grid, how="bilinear", nodata=0)
    strips = [doubled(native, slice(first, min(first + 64, shape[0]))) for first in range(0, shape[0], 64)]
    np.testing.assert_array_equal(np.concatenate(strips), truth)


@pytest.mark.parametrize("times", [1, 2, 3, 6])
def test_nearest_pixels_of_a_finer_grid_equal_gdal(times: int) -> None:
    native = np.random.default_rng(0).integers(0, 5, (30, 41)).astype(np.uint8)
    coarse, fine = (Affine(gsd, 0.0, 399960.0, 0.0, -gsd, 4900020.0) for gsd in (60.0, 60.0 / times))
    truth = np.full((30 * times, 41 * times), 255, np.uint8)
    options = {"src_crs": "EPSG:32632", "dst_crs": "EPSG:32632", "src_nodata": 255, "dst_nodata": 255}
    reproject(native, truth, src_transform=coarse, dst_transform=fine, resampling=Resampling.nearest, **options)
    grid = Grid(crs="EPSG:32632", epsg=32632, transform=tuple(fine)[:6], shape=truth.shape)
    assert grid.times(native.shape, tuple(coarse)[:6]) == times
    assert grid.times((31, 41), tuple(coarse)[:6]) == grid.times(native.shape, (60.0, 0.0, 0.0, 0.0, -60.0, 0.0)) == 0
    np.testing.assert_array_equal(
        regrid(native, transform=tuple(coarse)[:6], grid=grid, how="nearest", nodata=255), truth
    )


def test_labels_are_renumbered_after_a_class_is_added(tmp_path: Path) -> None:
    folder, out = tmp_path / "pictures", tmp_path / "out"
    source = {"kind": "image-folder", "size": 16, "classes": "folders"}

    def add(name: str, level: int) -> None:
        (folder / name).mkdir(parents=True)
        write_png(folder / name / "0.png", np.full((16, 16, 3), level, np.uint8))

    add("ash", 10)
    add("oak", 20)
    settings = dataset(folder, **source)
    ingest_scenes(settings, folder, out=out)
    add("elm", 30)
    ingest_scenes(settings, folder, out=out)
    labels = {row["scene_id"]: row["label"] for row in read_rows(out / "scenes.parquet")}
    assert labels == {"ash/0.png": 0, "elm/0.png": 1, "oak/0.png": 2}
    assert stage_output(out) == from_scratch(settings, folder, tmp_path)
