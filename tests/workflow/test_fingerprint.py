"""Fingerprints of user files: equal for equal files in any folder, different for different files."""

import os
import shutil
from pathlib import Path

import pytest

from dithc.workflow import fingerprint as room
from dithc.workflow.fingerprint import FileFingerprints, fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "scenes" / f"class{number % 2}" / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 10_000)
    return tmp_path / "scenes"


def digest_of(path: Path) -> str | None:
    return fingerprint(path, with_name=True)


def test_copies_links_and_hidden_files_preserve_the_fingerprint(folder: Path, tmp_path: Path) -> None:
    truth = digest_of(folder)
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(tmp_path / "copy" / "class0" / "0.npy", (0, 0))
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "linked").mkdir()
    for name in ("class0", "class1"):
        (tmp_path / "linked" / name).symlink_to(folder / name)
    assert [digest_of(tmp_path / name) for name in ("copy", "link", "linked")] == [truth] * 3
    (folder / ".listing").write_text("hidden")
    assert digest_of(folder) == truth


def test_added_removed_renamed_and_edited_files_change_the_fingerprint(folder: Path) -> None:
    digests = {digest_of(folder)}
    (folder / "class0" / "new.npy").write_bytes(b"x")
    digests.add(digest_of(folder))
    (folder / "class0" / "new.npy").rename(folder / "class1" / "new.npy")
    digests.add(digest_of(folder))
    (folder / "class1" / "new.npy").write_bytes(b"y")
    digests.add(digest_of(folder))
    (folder / "class1" / "new.npy").write_bytes(b"yy")
    digests.add(digest_of(folder))
    (folder / "class1" / "1.npy").unlink()
    digests.add(digest_of(folder))
    assert len(digests) == 6


def test_files_beyond_the_limits_are_hashed_by_size_then_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SAMPLED_FILES", 1)
    monkeypatch.setattr(room, "SIZED_FILES", 2)
    truth = digest_of(folder)
    (folder / "class0" / "2.npy").write_bytes(b"z" * 10_000)
    assert digest_of(folder) == truth, "the second file counts by size"
    (folder / "class0" / "4.npy").write_bytes(b"z")
    assert digest_of(folder) == truth, "the third file counts by name"
    (folder / "class0" / "2.npy").write_bytes(b"z")
    assert digest_of(folder) != truth


def test_single_file_is_hashed_by_content_and_optionally_by_name(tmp_path: Path) -> None:
    size = room.BLOCKS * room.BLOCK_BYTES + 5_000_000
    first, second = tmp_path / "a.pt", tmp_path / "b.pt"
    first.write_bytes(os.urandom(1000) * (size // 1000))
    shutil.copyfile(first, second)
    assert fingerprint(first, with_name=False) == fingerprint(second, with_name=False)
    assert fingerprint(first, with_name=True) != fingerprint(second, with_name=True)
    second.write_bytes(os.urandom(1000) * (size // 1000))
    assert fingerprint(first, with_name=False) != fingerprint(second, with_name=False)


def test_broken_links_and_empty_files_change_the_fingerprint(folder: Path) -> None:
    truth = digest_of(folder)
    (folder / "class1" / "again").symlink_to(folder)  # a circle ends
    assert digest_of(folder) == truth
    (folder / "class0" / "broken.npy").symlink_to(folder / "nothing")
    broken = digest_of(folder)
    (folder / "class0" / "broken.npy").unlink()
    (folder / "class0" / "broken.npy").touch()
    assert len({truth, broken, digest_of(folder)}) == 3


def test_pipes_and_devices_are_not_opened(folder: Path) -> None:
    before = fingerprint(folder, with_name=True)
    os.mkfifo(folder / "pipe.tif")  # opening it would block forever
    (folder / "zero.tif").symlink_to("/dev/zero")
    assert fingerprint(folder, with_name=True) != before


def test_fingerprints_of_missing_files_are_read_from_the_last_run(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "results" / "fingerprints.json"
    files = FileFingerprints(memory)
    truth = files.fingerprint(str(folder), with_name=True)
    files.save()
    os.rename(folder, tmp_path / "archive")
    assert FileFingerprints(memory).fingerprint(str(folder), with_name=True) == truth
    assert FileFingerprints(memory).fingerprint(str(tmp_path / "never"), with_name=True) is None
    memory.write_text("no JSON")
    assert FileFingerprints(memory).fingerprint(str(folder), with_name=True) is None
