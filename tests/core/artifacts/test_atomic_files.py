"""A file with its final name is complete, and its earlier content survives every failure."""

import os
from pathlib import Path

import pytest

from dithc.core.artifacts import atomic_replace, atomic_write


def test_failed_write_preserves_only_the_earlier_file(tmp_path: Path):
    path = tmp_path / "a.json"
    atomic_write(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_replace(path) as temporary:
        temporary.write_text(str(1 / len("")))
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_write_over_a_folder_raises_is_a_directory_error(tmp_path: Path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "kept").write_text("of hours")
    with pytest.raises(IsADirectoryError):
        atomic_write(folder, "x")
    assert (folder / "kept").read_text() == "of hours"
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("target", ["fifo", "link to a fifo", "/dev/stdout"])
def test_stream_is_written_and_preserved(tmp_path: Path, target: str, capfd: pytest.CaptureFixture[str]):
    fifo, path = tmp_path / "fifo", Path("/dev/stdout")
    os.mkfifo(fifo)
    if target != "/dev/stdout":
        path = fifo if target == "fifo" else tmp_path / "link"
        path == fifo or path.symlink_to(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write(path, "text")
    assert (capfd.readouterr().out if target == "/dev/stdout" else os.read(reader, 99).decode()) == "text"
    os.close(reader)
    assert fifo.is_fifo()
    assert Path("/dev/stdout").is_symlink()
    assert {one.name for one in tmp_path.iterdir()} <= {"fifo", "link"}


def test_symlink_is_preserved_and_the_target_replaced(tmp_path: Path):
    (tmp_path / "behind").write_text("old")
    (tmp_path / "link").symlink_to("behind")
    (tmp_path / "dangling").symlink_to("later")
    atomic_write(tmp_path / "link", "new")
    atomic_write(tmp_path / "dangling", "new")
    assert all((tmp_path / name).is_symlink() for name in ("link", "dangling"))
    assert all((tmp_path / name).read_text() == "new" for name in ("behind", "later"))
