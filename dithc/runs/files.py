"""Files that are either wholly there or not there: atomic writes, flushed to disk, and their hashes."""

import errno
import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dithc.sealed import plain

BLOCK_BYTES = 1 << 20


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal text."""
    digest = hashlib.sha256()
    with plain(path).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Forces a file or a folder's entries to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it is flushed and renamed over it, on error it is removed.

    Works for a file and for a folder (the body decides which it makes). An existing file is replaced; an existing folder
    is moved aside first and removed last, where it is a folder that takes its place.

    Raises:
        OSError: the disk is full or not writable; what stood at `path` before is intact.
    """
    temporary = beside(path)
    try:
        yield temporary
        for part in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
            flush(part)
        rename(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def beside(path: Path) -> Path:
    """A temporary name of this process in the folder of `path`, which is made; nothing stands under the name.

    Raises:
        OSError: the folder is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp.{socket.gethostname()}.{os.getpid()}")
    _remove(temporary)
    return temporary


def rename(new: Path, path: Path) -> None:
    """Gives a file or folder whose content is on disk its final name, for good; what stood there is replaced.

    Raises:
        OSError: the folder is not writable, or a file would take the place of a folder with all that is in it; what stood at
            `path` before is intact.
    """
    if new.is_dir():
        flush(new)
    _swap(new, path)
    flush(path.parent)


def _swap(new: Path, path: Path) -> None:
    """Renames `new` to `path`; a folder that stands there is moved aside first, and moved back on error."""
    if not path.is_dir():
        os.replace(new, path)
        return
    if not new.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    aside = new.with_name(f"{new.name}.replaced")
    os.rename(path, aside)
    try:
        os.replace(new, path)
    except BaseException:
        os.rename(aside, path)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a small file so that a reader sees the old content or the new, never a part."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
