"""No scene of a source's folder is missed in silence."""

import errno
import logging
import os
import pickle
from pathlib import Path

import pytest

from dithc.data.readers.listing import Paths, list_files, walk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two scenes, the second in a folder of its own, and a third in a folder elsewhere."""
    for name in ("source/one.tif", "source/more/two.tif", "source/.trash/old.tif", "elsewhere/three.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path / "source"


def listed(folder: Path) -> list[str]:
    found = list_files(folder, suffixes={".tif"}, wanted="scenes", remedy="none")
    return [path.relative_to(folder).as_posix() for path in found]


def test_folders_within_folders_are_listed_and_hidden_ones_are_not(folder: Path) -> None:
    assert listed(folder) == ["more/two.tif", "one.tif"]


def test_folder_that_cannot_be_read_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith("more"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(PermissionError):
        listed(folder)


def test_links_to_folders_are_said_and_links_to_files_are_scenes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "around").symlink_to(folder)
    (folder / "four.tif").symlink_to(tmp_path / "elsewhere" / "three.tif")
    assert listed(folder) == ["four.tif", "more/two.tif", "one.tif"]
    assert "2 links to folders" in caplog.text


def test_link_that_the_caller_takes_is_not_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    for _, folders, _ in walk(folder):
        folders.clear()
    assert not caplog.records


def test_many_paths_stand_in_little_and_are_the_same():
    paths = [Path("/a") / name for name in ("b.png", "ä/c.png", os.fsdecode(b"\xff.png"), "d")]
    packed = Paths(iter(paths))
    assert (list(packed), packed[-1], packed[1:3], len(packed)) == (paths, paths[-1], paths[1:3], 4)
    assert list(pickle.loads(pickle.dumps(packed))) == paths
    with pytest.raises(IndexError):
        packed[4]
    many = Paths(Path(f"/data/train/n01440764/n01440764_{number}.JPEG") for number in range(2000))
    assert len(pickle.dumps(many)) < 60 * 2000
