"""Products as they are delivered, `.tar.gz`: what is wanted of one is unpacked, after its every entry was judged.

An archive is a stranger's program for writing files. Nothing but regular files of wanted names is written, under their last
name alone; entries that leave the archive, links and devices, and archives that unfold to far more than they are, are refused.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from dithc.data.files import open_regular, room_bytes
from dithc.log import UserError, problem

MOST_ENTRIES = 1000
"""A product has ten to thirty."""
MOST_UNFOLDING = 100
SLACK_BYTES = 16 << 20
"""Images unfold two- to fourfold; a plain one of zeros, gzip's most, a thousandfold."""
BLOCK_BYTES = 1 << 20


def unpack(archive: Path, folder: Path, *, wanted: Callable[[str], bool]) -> list[Path]:
    """Unpacks the wanted files of a `.tar.gz` into `folder`, which exists and is empty; reads the archive to its end.

    Args:
        archive: the file; gzip's checksum of its content is compared.
        wanted: says by a file's last name whether it is.

    Returns:
        What was written, sorted.

    Raises:
        OSError: it is cut short or damaged.
        UserError: an entry is none that a product has, the archive unfolds too far, or there is no room for what is wanted.
    """
    limit = archive.stat().st_size * MOST_UNFOLDING + SLACK_BYTES
    written: dict[str, Path] = {}
    try:
        with open_regular(archive) as file, gzip.GzipFile(fileobj=file) as content:
            total = 0
            with tarfile.open(fileobj=content, mode="r|") as entries:
                for number, entry in enumerate(entries):
                    total += entry.size
                    _check(archive, entry, number=number, total=total, limit=limit)
                    name = PurePosixPath(entry.name).name
                    if not entry.isfile() or not wanted(name):
                        continue
                    if name in written:
                        raise _refused(archive, got=f"two files {name}")
                    _check_room(archive, entry.size, folder)
                    source = entries.extractfile(entry)
                    assert source is not None, "a regular file has content"
                    written[name] = folder / name
                    _copy(source, written[name], entry.size)
            while content.read(BLOCK_BYTES):  # the padding, and the checksum behind it
                total += BLOCK_BYTES
                _check_total(archive, total, entries=len(written), limit=limit)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise OSError(f"the archive is cut short or damaged: {error}") from error
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


def _check_room(archive: Path, num_bytes: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > min(free, room_bytes()):
        raise problem(
            f"{archive} cannot be unpacked",
            got=f"a file of {num_bytes / 2**30:.1f} GiB",
            expected=f"at most {min(free, room_bytes()) / 2**30:.1f} GiB: half of the memory, what is free in {folder.parent}",
            remedy="set TMPDIR to a folder with more room, or unpack it yourself",
        )


def _copy(source: IO[bytes], target: Path, size: int) -> None:
    with target.open("xb") as file:
        left = size
        while left:
            block = source.read(min(left, BLOCK_BYTES))
            if not block:
                raise EOFError(f"{target.name} ends {left} bytes early")
            file.write(block)
            left -= len(block)


def _refused(archive: Path, *, got: str) -> UserError:
    return problem(
        f"{archive} is no archive of a product",
        got=got,
        expected=f"files and folders inside of it, at most {MOST_ENTRIES}, that unfold at most {MOST_UNFOLDING}-fold",
        remedy="download it again from its source, and look at it before you unpack it (tar -tvf)",
    )
