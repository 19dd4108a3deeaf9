"""Zip files as archives deliver products: judged by their directory, then unpacked for as long as they are read."""

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dithc.clutter import is_clutter
from dithc.data.archives import check_disk, scratch
from dithc.data.files import open_regular
from dithc.data.scene import Reason, Refused

SUFFIX = ".zip"
MOST_FILES, MOST_RATIO = 100_000, 100
"""Products have some hundreds of files, those of many granules some thousands; XML is packed by 20, JPEG 2000 hardly at all."""
BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeError)
"""What zipfile comes to by a damaged, encrypted or mad archive, beside OSError and ValueError."""


def names_in(path: Path) -> list[str]:
    """Return the names of files in a zip file; OSError if it is invalid or truncated, UserError if it is not regular."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return [name for name in archive.namelist() if not is_clutter(name)]
    except BROKEN as error:
        raise OSError(f"the zip file cannot be read: {error}") from error


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield a temporary folder in TMPDIR with the content of a zip file; errors name its files below the zip file.

    Raises:
        Refused: A name leads out of it, an entry is not a plain file, or it is too large.
        NoRoom: The disk is too small.
        OSError: It is damaged; the checksum of every entry is compared.
    """
    with scratch(path) as folder:
        try:
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                entries = _judged(archive.infolist(), path, folder)
                for entry in entries:
                    if not is_clutter(entry.filename):
                        _unpack(archive, entry, folder)
        except BROKEN as error:
            raise OSError(f"the zip file is damaged: {error}") from error
        yield folder


def _judged(entries: list[zipfile.ZipInfo], path: Path, folder: Path) -> list[zipfile.ZipInfo]:
    """The entries, if all of them may be unpacked: by their names, kinds and sizes, and by what is left of the disk."""
    if odd := next((entry for entry in entries if not _is_plain(entry)), None):
        raise _hostile(
            path,
            got=f"the entry {odd.filename!r}",
            expected="plain files and folders with relative names that stay inside, stored or deflated, not encrypted",
        )
    names = [entry.filename.rstrip("/") for entry in entries]
    if len(set(names)) < len(names) or len(names) > MOST_FILES:
        raise _hostile(
            path, got=f"{len(names)} entries of {len(set(names))} names", expected=f"each once, {MOST_FILES} at most"
        )
    packed, real = (
        (sum(sizes) for sizes in zip(*((one.compress_size, one.file_size) for one in entries), strict=True))
        if entries
        else (0, 0)
    )
    size = path.stat().st_size
    if packed > size or real > MOST_RATIO * size:
        raise _hostile(
            path,
            got=f"{real} bytes in {size}, of which its entries take {packed}",
            expected=f"at most {MOST_RATIO} times its size",
        )
    check_disk(path, real, folder)
    return entries


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Other ways of packing than deflate can unfold a block of a megabyte to gigabytes before its size is looked at; and of an
    entry with two names (newer zipfile takes one from an extra field) one could be judged and the other written."""
    name, kind = entry.orig_filename, stat.S_IFMT(entry.external_attr >> 16)
    known = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and name == entry.filename
    inside = not name.startswith("/") and not {"", ".", ".."} & set(name.rstrip("/").split("/"))
    return (
        known
        and inside
        and not set("\\\0:") & set(name)
        and kind in (0, stat.S_IFREG, stat.S_IFDIR)
        and not entry.flag_bits & 1
    )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    """Writes one entry; zipfile gives no more bytes than the directory says, and compares the checksum at their end."""
    target = folder / PurePosixPath(entry.filename)
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        if file.tell() != entry.file_size:
            raise OSError(f"the zip file is cut short: {entry.filename} has {file.tell()} of {entry.file_size} bytes")


def _hostile(path: Path, *, got: str, expected: str) -> Refused:
    fix = "download it again; if it is yours, pack the product's folder as it is (zip -r)"
    return Refused(Reason.READ_ERROR, f"{path.name} is no zip file of a product", got=got, expected=expected, fix=fix)
