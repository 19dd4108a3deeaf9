"""Index of tar archives for reading in place, including archives inside an archive.

No files are unpacked, and headers are not trusted. An archive is rejected if an entry is not a plain file, leads out
of the archive, exceeds its end or is a duplicate. It is also rejected without an end marker or with data after it,
because files are then lost.
"""

import tarfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dithc.clutter import is_clutter
from dithc.data.archives.tarball import Entry
from dithc.data.files import open_regular, printable
from dithc.log import UserError, problem

SUFFIX = ".tar"
MOST_PADDING = 1 << 20
"""Most zeros after the last entry: tar fills its blocks of 10 KiB, other programs up to a tape record."""
COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"(\xb5": "unzstd"}


class Member(NamedTuple):
    """A file in an archive; an offset is counted from the start of the outer archive."""

    name: PurePosixPath  # for a file of an inner archive, below the name of the inner archive
    offset: int
    size: int


def members(path: Path) -> Iterator[Member]:
    """Yield the files of a tar archive and of tar archives in it, without hidden and system files; UserError if unsafe."""
    with open_regular(path) as file:
        for member in _files(file, 0, path.stat().st_size, path):
            if member.name.suffix.lower() == SUFFIX:
                yield from _inner(file, member, path / member.name)
            else:
                yield member


def _inner(file: BufferedReader, outer: Member, said: Path) -> Iterator[Member]:
    for member in _files(file, outer.offset, outer.offset + outer.size, said):
        if member.name.suffix.lower() == SUFFIX:
            raise _refused(said, got=f"the archive {member.name} in an archive in an archive")
        yield Member(outer.name / member.name, member.offset, member.size)


def _files(file: BufferedReader, start: int, end: int, said: Path) -> Iterator[Member]:
    names = set[PurePosixPath]()
    for entry in _entries(file, start, end, said):
        name = PurePosixPath(entry.name)
        shown = printable(entry.name)[:200]
        if not (entry.isfile() or entry.isdir()) or entry.issparse():
            raise _refused(said, got=f"{shown}, a link, a device or a file with holes")
        if name.is_absolute() or ".." in name.parts or set("\\\0") & set(entry.name):
            raise _refused(said, got=f"{shown}, which leads out of it")
        if entry.isdir() or is_clutter(name):
            continue
        if name in names:
            raise _refused(said, got=f"two files {shown}")
        names.add(name)
        yield Member(name, entry.offset_data, entry.size)


def _entries(file: BufferedReader, start: int, end: int, said: Path) -> Iterator[tarfile.TarInfo]:
    """Yield every header up to the required end marker; tarfile itself treats a damaged header as the end."""
    file.seek(start)
    if tool := COMPRESSED.get(file.peek(2)[:2]):
        raise _refused(said, got="a compressed archive, which cannot be read in place", fix=f"unpack it: {tool}")
    try:
        file.seek(start)
        archive = tarfile.TarFile(fileobj=file, mode="r", tarinfo=Entry)
        at = start
        while True:
            file.seek(at)
            try:
                entry = Entry.fromtarfile(archive)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                break
            if not at < entry.offset_data <= archive.offset or entry.offset_data + entry.size > end:
                raise tarfile.ReadError(f"{printable(entry.name)[:200]} has {entry.size} bytes, {end - at} are left")
            at = archive.offset
            yield entry
        file.seek(at)
        rest = file.read(min(end - at, MOST_PADDING))
        if rest.strip(b"\0") or len(rest) < end - at:
            raise tarfile.ReadError(f"{end - at} bytes after its end, as in concatenated archives")
    except (tarfile.TarError, ValueError, EOFError, RecursionError, OverflowError) as error:
        text = printable(str(error)) or type(error).__name__
        raise _refused(said, got=f"{text}, at byte {file.tell() - start} of {end - start}") from error


def _refused(archive: Path, *, got: str, fix: str = "") -> UserError:
    return problem(
        f"{printable(str(archive))} cannot be read as an archive of images",
        got=got,
        expected="a complete tar archive, not compressed, of plain files with unique relative names",
        fix=fix
        or "copy or download it again, and list its content (tar -tvf); pack links as files (tar --dereference)",
    )
