"""Unpacking of delivered products (`.tar.gz`), selected files only, with checks of every entry.

An archive is untrusted input. Only regular files with requested names are written, by their last name component.
Links, devices, entries that leave the archive, and archives with an extreme compression ratio are rejected.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from dithc.clutter import is_clutter
from dithc.data.archives.unpacking import check_disk
from dithc.data.files import check_room, open_regular
from dithc.log import UserError, problem

MOST_ENTRIES = 1000
"""Most entries of an archive; a product has ten to thirty."""
MOST_UNFOLDING = 100
SLACK_BYTES = 16 << 20
"""Limits of expansion: images expand two- to fourfold, zeros in gzip a thousandfold."""
BLOCK_BYTES = 1 << 20
MOST_NAME_BYTES = 1 << 16
NAME_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class Entry(tarfile.TarInfo):
    """Entry with a limited length of long names, which are read before the entry can be checked, and a valid size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in NAME_TYPES and self.size > MOST_NAME_BYTES:
            raise tarfile.ReadError(f"a name of {self.size} bytes")
        if self.size < 0:  # would lead back to the same header in an endless loop
            raise tarfile.ReadError(f"an entry of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def unpack(archive: Path, folder: Path, *, wanted: Callable[[str], bool]) -> list[Path]:
    """Unpack the files of a `.tar.gz` with `wanted` last names into an empty folder; return them, sorted.

    The archive is read to its end to compare gzip's checksum: OSError if damaged, UserError if unsafe, NoRoom without disk.
    """
    limit = archive.stat().st_size * MOST_UNFOLDING + SLACK_BYTES
    written: dict[str, Path] = {}
    try:
        with open_regular(archive) as file, gzip.GzipFile(fileobj=file) as content:
            total = 0
            with tarfile.open(fileobj=content, mode="r|", tarinfo=Entry) as entries:
                for number, entry in enumerate(entries):
                    total += entry.size
                    _check(archive, entry, number=number, total=total, limit=limit)
                    name = PurePosixPath(entry.name).name
                    if not entry.isfile() or not wanted(name) or is_clutter(entry.name):
                        continue
                    if name in written:
                        raise _refused(archive, got=f"two files {name}")
                    check_room(archive, entry.size, said=name)
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


def _check(archive: Path, entry: tarfile.TarInfo, *, number: int, total: int, limit: int) -> None:
    path = PurePosixPath(entry.name)
    said = entry.name.encode("utf-8", "backslashreplace").decode()[:200]
    if not (entry.isfile() or entry.isdir()) or entry.issparse():
        raise _refused(archive, got=f"{said}, a link, a device or a file with holes")
    if path.is_absolute() or ".." in path.parts or "\\" in entry.name:
        raise _refused(archive, got=f"{said}, which leads out of it")
    _check_total(archive, total, entries=number + 1, limit=limit)


def _check_total(archive: Path, total: int, *, entries: int, limit: int) -> None:
    if entries > MOST_ENTRIES or total > limit:
        raise _refused(archive, got=f"{entries} entries of {total} bytes, {archive.stat().st_size} packed")


def _refused(archive: Path, *, got: str) -> UserError:
    return problem(
        f"{archive} is not an archive of a product",
        got=got,
        expected=f"at most {MOST_ENTRIES} files and folders inside it, expanding at most {MOST_UNFOLDING}-fold",
        fix="download it again from its source, and list its content before you unpack it (tar -tvf)",
    )
