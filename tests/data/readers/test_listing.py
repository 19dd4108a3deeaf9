"""Every file below a source is a scene, a companion, a system file, or counted."""

import errno
import logging
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.config import datasets
from dithc.core import system_files
from dithc.core.logging import UserError
from dithc.core.system_files import is_system_file
from dithc.data import write_png
from dithc.data.images import SUFFIXES
from dithc.data.readers import SceneSource, read_scenes
from dithc.data.readers.listing import COMPANION, MASK, Listing, PathList
from tests.data.readers.system_files import add_system_files, touch

PICTURES: dict[str, Any] = {"kind": "image-folder", "size": 8}
RASTER: dict[str, Any] = {"kind": "geotiff", "bands": ["a"], "units": "dn"}
MASKS = (
    "x_udm.tif x_DN_udm.tif x_udm2.tif 20230512_3B_udm2_clip.TIF x_cloudmask.tif x_cloud_mask.tif x-mask.tif udm2.tif"
)
MASKS += " LC08_QA_PIXEL.TIF LC08_QA_RADSAT.TIF LC08_pixel_qa.tif x_BQA.tif x_Fmask.tif x_qa60.tif UDM_x.tif x.msk.tif"
MASKS += " mask_x.tif label-x.tif x_labels.tif x_clouds.tif"
MASKS += " T33UUP_20210101_SCL_20m.jp2 x_CLM_R1.tif MSK_CLDPRB_20m.jp2 x_cloud_probability.tif"
SCENES = "masked.tif msk_center.tif cloudy_day.tif sclera.tif qatar.tif x_AnalyticMS_SR_8b_clip.tif"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source with two scenes, the second in a subfolder, and a third scene elsewhere."""
    for name in ("source/one.tif", "source/more/two.tif", "source/.trash/old.tif", "elsewhere/three.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path / "source"


def list_files(folder: Path, **settings: Any) -> list[str]:
    source = datasets.GeoTiffSource(path=str(folder), **RASTER, **settings)
    found = Listing(source, folder).files(suffixes={".tif", ".jp2"}, expected="scenes", fix="none")
    return [path.relative_to(folder).as_posix() for path in found]


def open_source(folder: Path, **settings: Any) -> SceneSource:
    """Return the scenes of a source after the first pass of ingestion."""
    model = datasets.ImageFolderSource if settings["kind"] == "image-folder" else datasets.GeoTiffSource
    scenes = read_scenes(model.model_validate({**settings, "path": str(folder)}), folder)
    for position in range(len(scenes)):
        scenes.inspect(position)
    return scenes


def scene_ids(scenes: SceneSource) -> list[str]:
    return [scenes.scene_id(position) for position in range(len(scenes))]


def test_listing_includes_subfolders_and_skips_hidden_folders(folder: Path) -> None:
    assert list_files(folder) == ["more/two.tif", "one.tif"]


def test_unreadable_folder_raises_a_permission_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def scan_folder(path: str) -> object:
        if str(path).endswith("more"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", scan_folder)
    with pytest.raises(PermissionError):
        list_files(folder)


def test_folder_links_are_logged_and_file_links_are_listed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "around").symlink_to(folder)
    (folder / "four.tif").symlink_to(tmp_path / "elsewhere" / "three.tif")
    assert list_files(folder) == ["four.tif", "more/two.tif", "one.tif"]
    assert "2 links to folders" in caplog.text


def test_path_list_preserves_paths_and_pickles_compactly():
    paths = [Path("/a") / name for name in ("b.png", "ä/c.png", os.fsdecode(b"\xff.png"), "d")]
    packed = PathList(iter(paths))
    assert (list(packed), packed[-1], packed[1:3], len(packed)) == (paths, paths[-1], paths[1:3], 4)
    assert list(pickle.loads(pickle.dumps(packed))) == paths
    with pytest.raises(IndexError):
        packed[4]
    long_list = PathList(Path(f"/data/train/n01440764/n01440764_{number}.JPEG") for number in range(2000))
    assert len(pickle.dumps(long_list)) < 60 * 2000


@pytest.mark.parametrize("layout", ["folders", "one", "tar"])
def test_files_without_a_reader_are_counted_by_suffix(tmp_path: Path, layout: str) -> None:
    names = [f"k/{number}{suffix}" for number, suffix in enumerate(sorted(SUFFIXES))]
    names += ["k/UPPER.JPG", "k/a.heic", "k/b.HEIC", "k/bare", "k/.hidden.png", "k/.gitignore", "top.png", "README"]
    names += ["k/cut.png.part", "LICENSE.txt", "k/a.tif.aux.xml", "k/a.tfw", "k/a.ovr", "k/SHA256SUMS"]
    names += ["k/Thumbs.db", "k/._0.png"]
    touch(tmp_path / "in", *names)
    (tmp_path / "in/k/folder.png").mkdir()
    (tmp_path / "in/k/gone").symlink_to("nowhere")
    counts = {".heic": 2, "no suffix": 2, ".part": 1, ".png": 2}
    if layout == "tar":
        (tmp_path / "packed").mkdir()
        with tarfile.open(tmp_path / "packed/a.tar", "w") as archive:
            for name in names:
                archive.add(tmp_path / "in" / name, name)
        touch(tmp_path / "packed", "more.tar.gz")
        scenes = open_source(tmp_path / "packed", **PICTURES, layout="tar")
        counts |= {"no suffix": 1, ".gz": 1}
        del counts[".png"]  # the image at the top is a class, and hidden files in archives are not counted
    else:
        scenes = open_source(tmp_path / "in", **PICTURES, classes="one" if layout == "one" else "folders")
        counts |= {".png": 1} if layout == "one" else {}
    assert len(scenes) == len(SUFFIXES) + 1 + (layout != "folders")
    assert scenes.left_out() == counts


def test_raster_companions_are_ignored_and_other_files_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    touch(
        tmp_path, "a.tif", "a.tif.aux.xml", "a.tfw", "a.jpg", "a_thumb.png", "a-browse.dat", "b.jp2", "c.img", "d.zip"
    )
    touch(tmp_path, "metadata.json", "MD5SUMS", "readme.md", "a_udm2.tif", "x/a.vrt")
    scenes = open_source(tmp_path, **RASTER)
    assert scene_ids(scenes) == ["a.tif", "b.jp2"]
    assert scenes.left_out() == {".img": 1, ".vrt": 1, ".zip": 1, "masks": 1}
    assert all(text in caplog.text for text in (".img", "c.img", "a_udm2.tif", "clouds.mask"))


@pytest.mark.parametrize("name", MASKS.split())
def test_producer_mask_is_a_scene_only_if_selected_by_a_pattern(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "x.tif", f"scene/{name}")
    assert list_files(tmp_path) == ["x.tif"]
    found = MASK.search(Path(name).stem)
    assert found is not None
    assert list_files(tmp_path, include=[f"*{name[found.start() :]}"]) == [f"scene/{name}"]
    assert list_files(tmp_path / "scene" / name) == ["."], "the only file of a source is a scene"


@pytest.mark.parametrize("name", ["masks", "Labels", "cloud_masks", "annotations", "gt", "ground_truth"])
def test_raster_in_a_mask_folder_is_a_scene_only_if_selected_by_a_pattern(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "images/x.tif", f"{name}/x.tif", "gtx/y.tif")
    assert list_files(tmp_path) == ["gtx/y.tif", "images/x.tif"]
    assert list_files(tmp_path, include=[f"{name}/*"]) == [f"{name}/x.tif"]
    assert list_files(tmp_path / name) == ["x.tif"]


@pytest.mark.parametrize("classes", ["one", "folders"])
def test_masks_of_images_are_counted_and_not_listed(tmp_path: Path, classes: str) -> None:
    touch(tmp_path, "c/a.jpg", "c/A_mask.png", "c/mask_a.png", "c/b.png", "c/with_mask.png", "c/mask_2.png")
    scenes = open_source(tmp_path, **PICTURES, classes=classes)
    assert sorted(scene_ids(scenes)) == ["c/a.jpg", "c/b.png", "c/mask_2.png", "c/with_mask.png"]
    assert scenes.left_out() == {"masks": 2}


def test_raster_splits_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "train/a.tif", "val/b.tif")
    scenes = open_source(tmp_path, **RASTER)
    scenes.left_out()
    assert all(text in caplog.text for text in ("train", "val", str(tmp_path)))


@pytest.mark.parametrize("name", SCENES.split())
def test_names_that_resemble_masks_are_listed_as_scenes(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name)
    assert list_files(tmp_path) == [name]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({"include": ["*_SR_*"]}, ["2022/a_sr_1.tif", "2023/b_SR_1.TIF"]),
        ({"include": ["2023"]}, ["2023/b_SR_1.TIF", "2023/c.tif"]),
        ({"include": ["./2023/"], "exclude": ["C.TIF"]}, ["2023/b_SR_1.TIF"]),
        ({"exclude": ["2023/*"]}, ["2022/a_sr_1.tif"]),
        ({"exclude": ["2022", "*/c.*"]}, ["2023/b_SR_1.TIF"]),
    ],
)
def test_patterns_select_files_and_folders_case_insensitively(
    tmp_path: Path, patterns: dict[str, list[str]], expected: list[str]
) -> None:
    touch(tmp_path, "2022/a_sr_1.tif", "2023/b_SR_1.TIF", "2023/c.tif")
    assert list_files(tmp_path, **patterns) == expected
    with pytest.raises(UserError, match=r"3 excluded[\s\S]*fix: *correct `source.include`"):
        list_files(tmp_path, include=["nothing"])


def test_patterns_select_classes(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "dog/1.png", "bad/1.png", "notes/x.heic")
    scenes = open_source(tmp_path, **PICTURES, exclude=["bad", "notes"])
    assert (scenes.classes, scene_ids(scenes)) == (["cat", "dog"], ["cat/1.png", "dog/1.png"])
    assert scenes.left_out() == {"excluded": 2}


def test_system_files_in_class_folders_and_archives_are_ignored(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        write_png(tmp_path / "in" / name, np.zeros((8, 8, 3), np.uint8))
    add_system_files(tmp_path / "in")
    scenes = open_source(tmp_path / "in", **PICTURES)
    assert (scenes.classes, scene_ids(scenes), scenes.left_out()) == (["cat", "dog"], ["cat/1.png", "dog/1.png"], {})
    shutil.make_archive(str(tmp_path / "tar/a"), "tar", tmp_path / "in")
    touch(tmp_path / "tar", "@eaDir/a.tar/x.jpg")  # a folder next to archives would be a second layout
    scenes = open_source(tmp_path / "tar", **PICTURES)
    assert (scenes.classes, len(scenes), scenes.left_out()) == (["cat", "dog"], 2, {})


@given(
    st.sampled_from(sorted(system_files.NAMES | {".x"})),
    st.sampled_from([str.lower, str.upper, str.title]),
    st.sampled_from(["", "a/", "a/b c/"]),
)
def test_system_name_in_any_path_component_is_a_system_file(name: str, case: Callable[[str], str], prefix: str) -> None:
    assert is_system_file(f"{prefix}{case(name)}")
    assert is_system_file(Path(prefix, case(name), "1.png"))
    assert not is_system_file(f"../{prefix}x{case(name)}")


@pytest.mark.parametrize("name", ["a.raw", "a.hdr", "a.arw", "a.dat", "a.asc", "a", "a.tif", "a.npy", "a.csv"])
def test_file_that_can_contain_pixels_is_not_a_companion(name: str) -> None:
    assert not COMPANION.search(name)
