"""Products in zip files: scenes equal those from folders, and hostile archives are rejected without traces."""

import errno
import os
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import archives
from dithc.data.readers import read_scenes
from dithc.data.readers.sentinel2 import zip_products
from dithc.data.readers.sentinel2.zip_products import open_archive
from dithc.data.scene import Reason, Rejection, SceneRejectedError
from tests.data.readers.scene_readers import reader
from tests.data.readers.system_files import add_system_files, touch

ENTRY = "S2A.SAFE/MTD_MSIL2A.xml"


read_all, read_one, read_error = reader(datasets.Sentinel2Source, kind="sentinel2")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set the folder for unpacking, which must be empty after every test."""
    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not any(folder.iterdir())


@pytest.fixture
def packed(safe_folder: Path, safe_product: Path, tmp_path: Path) -> Path:
    """Create a zip file with the product in a separate folder."""
    folder = tmp_path / "packed"
    folder.mkdir()
    shutil.make_archive(str(folder / safe_product.stem), "zip", safe_folder, safe_product.name)
    return folder / f"{safe_product.stem}.zip"


@pytest.mark.parametrize("name", ["{}.zip", "{}.SAFE.zip", "{}.ZIP", "renamed.zip"])
def test_zip_file_scene_equals_the_folder_scene(safe_folder: Path, packed: Path, name: str) -> None:
    intact = read_one(safe_folder)
    path = packed.rename(packed.with_name(name.format(packed.stem)))
    for offset in (packed.parent, path):
        scene = read_one(offset)
        assert scene.scene_id == path.name
        assert (scene.sha256, scene.properties, scene.notes) == (intact.sha256, intact.properties, intact.notes)
        np.testing.assert_array_equal(scene.pixels, intact.pixels)
        np.testing.assert_array_equal(scene.mask, intact.mask)


def test_zip_file_without_outer_folder_is_read(safe_folder: Path, safe_product: Path, tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    shutil.make_archive(str(folder / "S2A_flat"), "zip", safe_product)
    assert read_one(folder).sha256 == read_one(safe_folder).sha256


def test_zip_file_next_to_the_product_folder_is_skipped(safe_folder: Path, packed: Path) -> None:
    shutil.copy(packed, safe_folder)
    assert read_one(safe_folder).scene_id.endswith(".SAFE")


def test_folder_hides_the_zip_file_only_if_the_product_is_inside(safe_product: Path, packed: Path) -> None:
    target = packed.with_suffix("")
    target.mkdir()
    (target / "preview.jpg").write_bytes(b"x")
    assert [scene.path for scene in read_all(packed.parent)] == [packed]
    shutil.copytree(safe_product, target / safe_product.name)
    assert [scene.path for scene in read_all(packed.parent)] == [target / safe_product.name]


def test_zip_files_without_products_are_skipped(safe_folder: Path) -> None:
    with zipfile.ZipFile(safe_folder / "notes.zip", "w") as target:
        target.writestr("notes.txt", "x")
    (safe_folder / "empty.zip").touch()
    assert read_one(safe_folder).scene_id.endswith(".SAFE")


def test_user_mask_next_to_a_zip_file_is_read_and_hashed(safe_folder: Path, safe_product: Path, packed: Path) -> None:
    for folder in (safe_folder, packed.parent):
        np.save(folder / f"{safe_product.stem}_mask.npy", np.ones((96, 96), np.uint8))
    settings = {"clouds": datasets.ProductCloudsConfig(mask={})}
    one, other = read_one(safe_folder, **settings), read_one(packed.parent, **settings)
    assert one.sha256 == other.sha256
    np.testing.assert_array_equal(one.mask, other.mask)


def test_zip_file_of_another_level_raises_an_error(safe_folder: Path) -> None:
    with zipfile.ZipFile(safe_folder / "S2A_MSIL1C_X.zip", "w") as target:
        target.writestr("S2A_MSIL1C_X.SAFE/MTD_MSIL1C.xml", "<a/>")
    with pytest.raises(UserError, match="two levels"):
        read_all(safe_folder)


def test_errors_contain_zip_paths_instead_of_scratch_paths(packed: Path, scratch: Path) -> None:
    with zipfile.ZipFile(packed) as source:
        content = {entry: source.read(entry) for entry in source.namelist()}
    with zipfile.ZipFile(packed, "w") as target:
        for name, data in content.items():
            target.writestr(name, data[:-100] if name.endswith("B03_10m.jp2") else data)
    for settings in ({}, {"checksum": "skip"}):
        error = read_error(packed.parent, **settings)
        text = f"{error} {error.got} {error.expected} {error.fix}"
        assert str(scratch) not in text
    with zipfile.ZipFile(packed, "w") as target:
        for name, data in content.items():
            target.writestr(name, b"<a" if "MTD_MSI" in name else data)
    error = read_error(packed.parent, checksum="skip")
    assert f"{packed}/" in error.problem
    assert str(scratch) not in str(error)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_truncated_or_altered_zip_file_is_rejected(packed: Path, share: float) -> None:
    intact, good = packed.read_bytes(), read_one(packed.parent).sha256
    offset = int(share * len(intact))
    packed.write_bytes(intact[:offset])
    assert read_error(packed.parent).reason == Reason.READ_ERROR
    packed.write_bytes(intact[:offset] + bytes([intact[offset] ^ 0x55]) + intact[offset + 1 :])
    (found,) = read_all(packed.parent)
    assert isinstance(found, Rejection) or found.sha256 == good  # a date, or the entry of a folder


def test_altered_byte_of_any_file_is_detected_by_zip_checksums_alone(packed: Path) -> None:
    intact = packed.read_bytes()
    with zipfile.ZipFile(packed) as source:
        starts = [entry.header_offset + 80 + entry.compress_size // 2 for entry in source.infolist() if entry.file_size]
    for offset in starts[::6]:
        packed.write_bytes(intact[:offset] + bytes([intact[offset] ^ 1]) + intact[offset + 1 :])
        assert read_error(packed.parent, checksum="skip").reason == Reason.READ_ERROR


@pytest.mark.parametrize(
    "name",
    ["../out.txt", "a/../../out.txt", "/out.txt", "a//out.txt", "./out.txt", "..\\out.txt", "C:/out.txt", "a/.."],
)
def test_entry_names_outside_the_archive_are_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "S2A_X.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(ENTRY, "<a/>")
        target.writestr(zipfile.ZipInfo(name), "out")
    with pytest.raises(SceneRejectedError, match="relative names"), open_archive(path):
        pass
    assert not list(tmp_path.rglob("out.txt"))


@pytest.mark.parametrize("name", [f"{ENTRY}/x", "S2A.SAFE", f"S2A.SAFE/{'x' * 5000}", f"S2A.SAFE/{'d/' * 3000}x"])
def test_impossible_entry_names_raise_an_os_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "S2A_X.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(ENTRY, "<a/>")
        target.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(OSError), open_archive(path):
        pass


def test_links_pipes_and_encrypted_entries_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "S2A_X.zip"
    for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR):
        entry = zipfile.ZipInfo(ENTRY)
        entry.external_attr = (kind | 0o644) << 16
        with zipfile.ZipFile(path, "w") as target:
            target.writestr(entry, "/etc/passwd")
        with pytest.raises(SceneRejectedError, match="plain files"), open_archive(path):
            pass
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(ENTRY, "<a/>")
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(SceneRejectedError, match="plain files"), open_archive(path):
        pass


def test_zip_bombs_and_shared_entries_are_rejected_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "S2A_X.zip"
    monkeypatch.setattr(zip_products, "_unpack", lambda *_: pytest.fail("unpacked"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(ENTRY, bytes(1 << 22))
    with pytest.raises(SceneRejectedError, match="100 times"), open_archive(path):
        pass
    with zipfile.ZipFile(path, "w") as target:  # entries that share their bytes
        target.writestr(ENTRY, os.urandom(5000))
        for number in range(20):
            shared = zipfile.ZipInfo(f"S2A.SAFE/{number}")
            first = target.filelist[0]
            shared.CRC, shared.file_size, shared.compress_size = first.CRC, first.file_size, first.compress_size
            shared.header_offset = 0
            target.filelist.append(shared)
            target.NameToInfo[shared.filename] = shared
        target._didModify = True
    with pytest.raises(SceneRejectedError, match="its entries use"), open_archive(path):
        pass
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(ENTRY, "<a/>")
        with pytest.warns(UserWarning, match="Duplicate"):
            target.writestr(ENTRY, "<b/>")
    with pytest.raises(SceneRejectedError, match="each once"), open_archive(path):
        pass


@pytest.mark.parametrize("claimed", [10, 4000])
def test_wrong_entry_size_in_the_directory_is_rejected(tmp_path: Path, claimed: int) -> None:
    path = tmp_path / "S2A_X.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(ENTRY, os.urandom(2000))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\1\2") + 24, claimed)
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"damaged|truncated"), open_archive(path):
        pass


def test_archive_larger_than_the_free_disk_space_reports_tmpdir(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SPARE_BYTES", 1 << 60)
    with pytest.raises(UserError, match="TMPDIR"):
        read_all(packed.parent)


def test_full_disk_during_unpacking_reports_tmpdir(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zip_products.shutil, "copyfileobj", full)
    with pytest.raises(UserError, match=r"insufficient to unpack[\s\S]*TMPDIR"):
        read_all(packed.parent)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bzip2_and_lzma_entries_are_rejected(tmp_path: Path, method: int) -> None:
    path = tmp_path / "S2A_X.zip"
    with zipfile.ZipFile(path, "w", method) as target:
        target.writestr(ENTRY, b"x" * 100)
    with pytest.raises(SceneRejectedError, match="deflated"), open_archive(path):
        pass


def test_entry_with_an_alternative_outside_name_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "S2A_X.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(ENTRY, b"x")
    intact = zipfile.ZipFile.infolist

    def renamed(self: zipfile.ZipFile) -> list[zipfile.ZipInfo]:  # like newer versions for the field 0x7075
        entries = intact(self)
        entries[0].filename = "../../evil"
        return entries

    monkeypatch.setattr(zipfile.ZipFile, "infolist", renamed)
    with pytest.raises(SceneRejectedError, match="stay inside"), open_archive(path):
        pass
    assert not (tmp_path.parent / "evil").exists()


def test_archive_without_exactly_one_product_is_rejected(packed: Path, safe_folder: Path, safe_product: Path) -> None:
    shutil.copytree(safe_product, safe_folder / "S2B_other.SAFE")
    shutil.make_archive(str(packed.with_suffix("")), "zip", safe_folder)
    assert "several products" in read_error(packed.parent).problem
    with zipfile.ZipFile(packed, "w") as target:
        target.writestr("readme.txt", "x")
    error = read_error(packed.parent)
    assert "no product" in error.problem
    assert "readme.txt" in error.got


def test_pipe_named_as_a_zip_file_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    os.mkfifo(folder / "S2A_X.zip")
    assert "pipe" in read_error(folder).got


@pytest.mark.parametrize("is_packed", [False, True])
def test_system_files_are_ignored_and_other_files_are_counted(
    safe_folder: Path, safe_product: Path, tmp_path: Path, is_packed: bool
) -> None:
    expected = read_one(safe_folder, bands=["B04"], checksum="skip")
    add_system_files(safe_folder)
    touch(safe_folder, "__MACOSX/S2A_MSIL2A_X.SAFE/MTD_MSIL2A.xml", "@eaDir/S2A_MSIL2A_X.SAFE/MTD_MSIL2A.xml")
    folder = safe_folder
    if is_packed:
        folder = tmp_path / "packed"
        shutil.make_archive(str(folder / safe_product.stem), "zip", safe_folder)
    touch(folder, "S2.tar", "T33_B02.jp2", "notes.txt", "deep/x.zip")
    scenes = read_scenes(datasets.Sentinel2Source(kind="sentinel2", path="x"), folder)
    assert len(scenes) == 1
    scenes.inspect(0)
    assert scenes.left_out() == {".jp2": 1, ".tar": 1, ".zip": 1}
    found = read_one(folder, bands=["B04"], checksum="skip")
    np.testing.assert_array_equal(found.pixels, expected.pixels)
    with pytest.raises(UserError, match="1 excluded"):
        read_all(folder, exclude=[f"{safe_product.stem[:12]}*"])
