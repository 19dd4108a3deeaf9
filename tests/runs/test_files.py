"""A file or folder with its final name is complete; what stood there before survives every failure."""

import os
from pathlib import Path

import pytest

from dithc.runs import atomic_write, replacing


def test_error_while_writing_leaves_the_earlier_file_and_no_leftover(tmp_path: Path):
    path = tmp_path / "a.json"
    atomic_write(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(str(1 / len("")))
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_folder_replaces_a_folder_whole(tmp_path: Path):
    for text in ("old", "new"):
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / text).write_text(text)
    assert [item.name for item in tmp_path.rglob("*")] == ["folder", "new"]


def test_folder_that_cannot_be_renamed_in_gives_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with replacing(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "old").touch()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"), replacing(tmp_path / "folder") as temporary:
        temporary.mkdir()
    assert [item.name for item in tmp_path.rglob("*")] == ["folder", "old"]


def test_file_never_takes_the_place_of_a_folder(tmp_path: Path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "kept").write_text("of hours")
    with pytest.raises(IsADirectoryError):
        atomic_write(folder, "x")
    assert (folder / "kept").read_text() == "of hours"
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
