"""Unpacking of products: requested files are complete, and hostile or damaged archives write no files."""

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.data.archives import unpack

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"pixels", **changes: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    def write(*entries: Entry) -> Path:
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            for info, content in entries:
                archive.addfile(info, io.BytesIO(content) if info.isfile() else None)
        (tmp_path / "out").mkdir(exist_ok=True)
        return tmp_path / "x.tar.gz"

    return write


def is_tiff(name: str) -> bool:
    return name.endswith(".tiff")


def test_unpack_writes_only_wanted_files_without_subfolders(pack: Callable[..., Path], tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    archive = pack(entry("a.jpg"), entry("product/", b"", type=tarfile.DIRTYPE), entry("product/a.tiff", content))
    assert unpack(archive, tmp_path / "out", wanted=is_tiff) == [tmp_path / "out" / "a.tiff"]
    assert (tmp_path / "out" / "a.tiff").read_bytes() == content
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../a.tiff")],
        [entry("/tmp/a.tiff")],
        [entry("b/../../a.tiff")],
        [entry("..\\a.tiff")],
        [entry("a.tiff", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        [entry("a.tiff", b"", type=tarfile.LNKTYPE, linkname="b.jpg")],
        [entry("a.tiff", b"", type=tarfile.FIFOTYPE)],
        [entry("a.tiff", b"", type=tarfile.CHRTYPE)],
        [entry("a.tiff", b"", type=tarfile.GNUTYPE_SPARSE)],
        [entry("a.tiff", bytes(20 << 20))],  # expands too far
        [entry(f"{number}.jpg", b"") for number in range(1000)],
    ],
    ids=lambda entries: f"{entries[0][0].name}-{entries[0][0].type!r}-{entries[0][0].size}",
)
def test_hostile_entries_are_rejected_before_any_file_is_written(
    pack: Callable[..., Path], tmp_path: Path, entries: list[Entry]
) -> None:
    archive = pack(entry("b.jpg"), *entries)
    assert archive.stat().st_size < 100_000
    with pytest.raises(UserError, match="not an archive of a product"):
        unpack(archive, tmp_path / "out", wanted=is_tiff)
    assert not list((tmp_path / "out").iterdir())
    assert not (tmp_path / "a.tiff").exists()


def test_duplicate_file_names_are_rejected(pack: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two files"):
        unpack(pack(entry("a.tiff"), entry("b/a.tiff")), tmp_path / "out", wanted=is_tiff)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9, 0.999])
def test_truncated_archive_raises_an_error(pack: Callable[..., Path], tmp_path: Path, share: float) -> None:
    archive = pack(entry("a.tiff", bytes(range(256)) * 4000))
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(OSError, match="damaged"):
        unpack(archive, tmp_path / "out", wanted=is_tiff)


def test_altered_byte_raises_a_checksum_error(tmp_path: Path, pack: Callable[..., Path]) -> None:
    """The bytes include content after the last requested file, because gzip's checksum is at the end."""
    archive = pack(entry("a.tiff", b"pixels" * 100), entry("b.jpg", bytes(range(256)) * 40))
    tar = bytearray(gzip.decompress(archive.read_bytes()))
    good = gzip.compress(bytes(tar), 1, mtime=0)
    tar[600] ^= 1  # in the content of the first file
    other = gzip.compress(bytes(tar), 1, mtime=0)
    archive.write_bytes(other[:-8] + good[-8:])
    with pytest.raises(OSError, match=r"damaged|CRC"):
        unpack(archive, tmp_path / "out", wanted=is_tiff)


def test_oversized_entry_name_is_rejected_before_reading(tmp_path: Path) -> None:
    """A header declares a name of 64 MiB for the next entry, which expands from 64 KiB."""
    info, content = entry("././@LongLink", b"a" * (1 << 26), type=tarfile.GNUTYPE_LONGNAME)
    with gzip.open(tmp_path / "x.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + content)
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    with pytest.raises(OSError, match="a name of 67108864 bytes"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "out", wanted=is_tiff)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_long_chain_of_name_entries_is_rejected(tmp_path: Path) -> None:
    info, content = entry("././@LongLink", b"a" * 512, type=tarfile.GNUTYPE_LONGNAME)
    with gzip.open(tmp_path / "x.tar.gz", "wb") as file:
        file.write((info.tobuf(tarfile.GNU_FORMAT) + content) * 3000)
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="damaged"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "out", wanted=is_tiff)
