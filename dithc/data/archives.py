"""Archives of products and images, read in place or unpacked temporarily.

`list_members` lists the files of tar archives in place, including archives in an archive. `unpack` unpacks selected files of
a delivered product (`.tar.gz`) into `scratch_folder`. All entries are checked before any is written. An archive is untrusted
input: links, devices, entries that leave the archive, and archives with an extreme compression ratio are rejected.

A live process holds a lock (flock) on its temporary folder, which the kernel releases when the process ends. A later run
removes the folders of killed processes. The folder's name contains the host name, because hosts may share the file
system without sharing locks.
"""

import errno
import fcntl
import glob
import gzip
import os
import platform
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError, user_error
from dithc.core.system_files import is_system_file
from dithc.core.units import format_bytes
from dithc.data.file_checks import check_memory, open_regular, printable
from dithc.data.scene import SceneRejectedError

SPARE_BYTES = 1 << 30
"""Disk space that stays free."""
MAX_ENTRIES = 1000
"""Most entries of an archive; a product has ten to thirty."""
MAX_EXPANSION = 100
SLACK_BYTES = 16 << 20
"""Limits of expansion: images expand two- to fourfold, zeros in gzip a thousandfold."""
BLOCK_BYTES = 1 << 20
MAX_NAME_BYTES = 1 << 16
NAME_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
SUFFIX = ".tar"
MAX_PADDING = 1 << 20
"""Most zeros after the last entry: tar fills its blocks of 10 KiB, other programs up to a tape record."""
COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"(\xb5": "unzstd"}


class DiskFullError(UserError):
    """Insufficient disk space, which also affects all further archives."""


@contextmanager
def scratch_folder(archive: Path) -> Iterator[Path]:
    """Yield an empty folder in TMPDIR; errors name its files below the archive. DiskFullError if the disk becomes full."""
    with _locked_folder() as name:
        try:
            yield Path(name)
        except DiskFullError:
            raise
        except SceneRejectedError as error:
            texts = {key: getattr(error, key).replace(name, str(archive)) for key in ("got", "expected", "fix")}
            raise SceneRejectedError(error.reason, error.problem.replace(name, str(archive)), **texts) from error
        except (UserError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full_error(archive, got=str(error.strerror)) from error
            kind = UserError if isinstance(error, UserError) else OSError
            raise kind(str(error).replace(name, str(archive))) from error


def remove_stale_folders() -> None:
    """Remove the folders that killed processes of this user left on this machine."""
    for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(_folder_prefix())}*"):
        with suppress(OSError):  # locked by a live process, already removed, or without lock support
            if path.lstat().st_uid != os.getuid():
                continue
            lock = _lock_folder(path)
            try:
                if outputs.OutputFolder(path).is_scratch:
                    outputs.remove(path, reason="a process was killed while it read an archive there")
            finally:
                os.close(lock)


@contextmanager
def _locked_folder() -> Iterator[str]:
    """Yield a new folder that no other process considers abandoned."""
    while True:
        with tempfile.TemporaryDirectory(prefix=_folder_prefix(), ignore_cleanup_errors=True) as name:
            lock = None
            try:
                lock = _lock_folder(Path(name))
            except (FileNotFoundError, BlockingIOError):  # another process considered it abandoned before the lock
                continue
            except OSError:  # without lock support, no folder is considered abandoned
                pass
            files = Path(name) / "files"
            files.mkdir()
            outputs.make_scratch(Path(name))
            try:
                yield str(files)
            finally:
                if lock is not None:
                    os.close(lock)
            return


def _lock_folder(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; BlockingIOError if another process holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()  # fails if the folder was removed before the lock was acquired
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _folder_prefix() -> str:
    return f"dithc-{platform.node()}-"


def check_disk(archive: Path, num_bytes: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if num_bytes > free:
        raise disk_full_error(archive, got=f"{format_bytes(num_bytes)} to unpack")


def disk_full_error(archive: Path, *, got: str) -> DiskFullError:
    return DiskFullError(
        str(
            user_error(
                f"the disk space is insufficient to unpack {archive.name}",
                got=got,
                expected=f"that much free in {tempfile.gettempdir()}, and {format_bytes(SPARE_BYTES)} that stay free",
                fix="set TMPDIR to a folder with more space, or unpack the product yourself",
            )
        )
    )


class TarEntry(tarfile.TarInfo):
    """Entry with a limited length of long names, which are read before the entry can be checked, and a valid size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in NAME_TYPES and self.size > MAX_NAME_BYTES:
            raise tarfile.ReadError(f"a name of {self.size} bytes")
        if self.size < 0:  # would lead back to the same header in an endless loop
            raise tarfile.ReadError(f"an entry of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def unpack(archive: Path, folder: Path, *, wanted: Callable[[str], bool]) -> list[Path]:
    """Unpack the files of a `.tar.gz` with `wanted` last names into an empty folder; return them, sorted.

    The archive is read to its end to compare gzip's checksum: OSError if damaged, UserError if unsafe, DiskFullError.
    """
    limit = archive.stat().st_size * MAX_EXPANSION + SLACK_BYTES
    written: dict[str, Path] = {}
    try:
        with open_regular(archive) as file, gzip.GzipFile(fileobj=file) as content:
            total = 0
            with tarfile.open(fileobj=content, mode="r|", tarinfo=TarEntry) as entries:
                for number, entry in enumerate(entries):
                    total += entry.size
                    if fault := _entry_fault(entry):
                        raise _invalid_product(archive, got=fault)
                    _check_total(archive, total, entries=number + 1, limit=limit)
                    name = PurePosixPath(entry.name).name
                    if not entry.isfile() or not wanted(name) or is_system_file(entry.name):
                        continue
                    if name in written:
                        raise _invalid_product(archive, got=f"two files {name}")
                    check_memory(archive, entry.size, description=name)
                    check_disk(archive, entry.size, folder)
                    source = entries.extractfile(entry)
                    assert source is not None, "a regular file has content"
                    written[name] = folder / name
                    with written[name].open("xb") as target:
                        shutil.copyfileobj(source, target, BLOCK_BYTES)
            while content.read(BLOCK_BYTES):  # the padding, and the checksum after it
                total += BLOCK_BYTES
                _check_total(archive, total, entries=len(written), limit=limit)
    except (tarfile.TarError, zlib.error, EOFError, RecursionError) as error:
        raise OSError(f"the archive is truncated or damaged: {error}") from error
    return sorted(written.values())


def _entry_fault(entry: tarfile.TarInfo) -> str:
    """Return the reason why an entry must not be read, or an empty text."""
    path, name = PurePosixPath(entry.name), printable(entry.name)[:200]
    if not (entry.isfile() or entry.isdir()) or entry.issparse():
        return f"{name}, a link, a device or a file with holes"
    is_outside = path.is_absolute() or ".." in path.parts or set("\\\0") & set(entry.name)
    return f"{name}, which leads out of it" if is_outside else ""


def _check_total(archive: Path, total: int, *, entries: int, limit: int) -> None:
    if entries > MAX_ENTRIES or total > limit:
        raise _invalid_product(archive, got=f"{entries} entries of {total} bytes, {archive.stat().st_size} packed")


def _invalid_product(archive: Path, *, got: str) -> UserError:
    return user_error(
        f"{archive} is not an archive of a product",
        got=got,
        expected=f"at most {MAX_ENTRIES} files and folders inside it, expanding at most {MAX_EXPANSION}-fold",
        fix="download it again from its source, and list its content before you unpack it (tar -tvf)",
    )


class TarMember(NamedTuple):
    """A file in an archive; an offset is counted from the start of the outer archive."""

    name: PurePosixPath  # for a file of an inner archive, below the name of the inner archive
    offset: int
    size: int


def list_members(path: Path) -> Iterator[TarMember]:
    """Yield the files of a tar archive and of tar archives in it, without hidden and system files; UserError if unsafe."""
    with open_regular(path) as file:
        for member in _members(file, 0, path.stat().st_size, path):
            if member.name.suffix.lower() != SUFFIX:
                yield member
                continue
            inner_path = path / member.name
            for inner in _members(file, member.offset, member.offset + member.size, inner_path):
                if inner.name.suffix.lower() == SUFFIX:
                    raise _unreadable(inner_path, got=f"the archive {inner.name} in an archive in an archive")
                yield TarMember(member.name / inner.name, inner.offset, inner.size)


def _members(file: BufferedReader, start: int, end: int, path: Path) -> Iterator[TarMember]:
    names = set[PurePosixPath]()
    for entry in _headers(file, start, end, path):
        name = PurePosixPath(entry.name)
        if fault := _entry_fault(entry):
            raise _unreadable(path, got=fault)
        if entry.isdir() or is_system_file(name):
            continue
        if name in names:
            raise _unreadable(path, got=f"two files {printable(entry.name)[:200]}")
        names.add(name)
        yield TarMember(name, entry.offset_data, entry.size)


def _headers(file: BufferedReader, start: int, end: int, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield every header up to the required end marker; tarfile itself treats a damaged header as the end.

    Files would be lost without an end marker, or if data follow it.
    """
    file.seek(start)
    if tool := COMPRESSED.get(file.peek(2)[:2]):
        raise _unreadable(path, got="a compressed archive, which cannot be read in place", fix=f"unpack it: {tool}")
    try:
        file.seek(start)
        archive = tarfile.TarFile(fileobj=file, mode="r", tarinfo=TarEntry)
        pos = start
        while True:
            file.seek(pos)
            try:
                entry = TarEntry.fromtarfile(archive)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                break
            if not pos < entry.offset_data <= archive.offset or entry.offset_data + entry.size > end:
                raise tarfile.ReadError(f"{printable(entry.name)[:200]} has {entry.size} bytes, {end - pos} are left")
            pos = archive.offset
            yield entry
        file.seek(pos)
        trailer = file.read(min(end - pos, MAX_PADDING))
        if trailer.strip(b"\0") or len(trailer) < end - pos:
            raise tarfile.ReadError(f"{end - pos} bytes after its end, as in concatenated archives")
    except (tarfile.TarError, ValueError, EOFError, RecursionError, OverflowError) as error:
        text = printable(str(error)) or type(error).__name__
        raise _unreadable(path, got=f"{text}, at byte {file.tell() - start} of {end - start}") from error


def _unreadable(archive: Path, *, got: str, fix: str = "") -> UserError:
    return user_error(
        f"{printable(str(archive))} cannot be read as an archive of images",
        got=got,
        expected="a complete tar archive, not compressed, of plain files with unique relative names",
        fix=fix
        or "copy or download it again, and list its content (tar -tvf); pack links as files (tar --dereference)",
    )
