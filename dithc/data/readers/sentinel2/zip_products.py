"""Zip files of products, checked by their directory and unpacked while they are read."""

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dithc.core.system_files import is_system_file
from dithc.data.archives import check_disk, scratch_folder
from dithc.data.file_checks import open_regular
from dithc.data.scene import Reason, SceneRejectedError

SUFFIX = ".zip"
MAX_FILES, MAX_RATIO = 100_000, 100
"""Limits of a zip file. Products have hundreds of files, with many granules thousands. The compression ratio is 20 for
XML and about 1 for JPEG 2000.
"""
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeError)
"""Exceptions of zipfile for damaged, encrypted or invalid archives, besides OSError and ValueError."""


def names_in(path: Path) -> list[str]:
    """Return the names of files in a zip file; OSError if it is damaged, UserError if it is not regular."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return [name for name in archive.namelist() if not is_system_file(name)]
    except ZIP_ERRORS as error:
        raise OSError(f"the zip file cannot be read: {error}") from error


@contextmanager
def open_archive(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with the content of a zip file, after checks of all entries and their checksums."""
    with scratch_folder(path) as folder:
        try:
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                for entry in _check_entries(archive.infolist(), path, folder):
                    if not is_system_file(entry.filename):
                        _unpack(archive, entry, folder)
        except ZIP_ERRORS as error:
            raise OSError(f"the zip file is damaged: {error}") from error
        yield folder


def _check_entries(entries: list[zipfile.ZipInfo], path: Path, folder: Path) -> list[zipfile.ZipInfo]:
    """Return the entries if names, types, sizes and free disk space allow unpacking."""
    if invalid := next((entry for entry in entries if not _is_plain(entry)), None):
        raise _archive_error(
            path,
            got=f"the entry {invalid.filename!r}",
            expected="plain files and folders with relative names that stay inside, stored or deflated, not encrypted",
        )
    names = [entry.filename.rstrip("/") for entry in entries]
    if len(set(names)) < len(names) or len(names) > MAX_FILES:
        raise _archive_error(
            path, got=f"{len(names)} entries of {len(set(names))} names", expected=f"each once, {MAX_FILES} at most"
        )
    packed, unpacked_size = sum(entry.compress_size for entry in entries), sum(entry.file_size for entry in entries)
    size = path.stat().st_size
    if packed > size or unpacked_size > MAX_RATIO * size:
        raise _archive_error(
            path,
            got=f"{unpacked_size} bytes in {size}, of which its entries use {packed}",
            expected=f"at most {MAX_RATIO} times its size",
        )
    check_disk(path, unpacked_size, folder)
    return entries


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a plain, safely named file or folder.

    Methods other than deflate can expand a block of a megabyte to gigabytes before its size is checked. An entry with
    two names (newer zipfile reads one from an extra field) could be checked by one and written by the other.
    """
    name, kind = entry.orig_filename, stat.S_IFMT(entry.external_attr >> 16)
    is_standard = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and name == entry.filename
    is_inside = not name.startswith("/") and not {"", ".", ".."} & set(name.rstrip("/").split("/"))
    return (
        is_standard
        and is_inside
        and not set("\\\0:") & set(name)
        and kind in (0, stat.S_IFREG, stat.S_IFDIR)
        and not entry.flag_bits & 1
    )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    """Write one entry; zipfile limits it to the size in the directory and compares its checksum."""
    target = folder / PurePosixPath(entry.filename)
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        if file.tell() != entry.file_size:
            raise OSError(f"the zip file is truncated: {entry.filename} has {file.tell()} of {entry.file_size} bytes")


def _archive_error(path: Path, *, got: str, expected: str) -> SceneRejectedError:
    fix = "download it again; if you created it, pack the product's folder unchanged (zip -r)"
    return SceneRejectedError(
        Reason.READ_ERROR, f"{path.name} is not a zip file of a product", got=got, expected=expected, fix=fix
    )
