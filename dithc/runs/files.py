"""Files that are either wholly there or not there: atomic writes, flushed to disk, and their hashes."""

import errno
import hashlib
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from dithc.sealed import plain

BLOCK_BYTES = 1 << 20
MOST_LINKS = 40  # as many as the kernel follows
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links."""


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
def replacing(
    path: Path, *, is_new: bool = False, before: Callable[[Path], object] = lambda temporary: None
) -> Iterator[Path]:
    """Yield a temporary path for a file that takes the place of `path` when the body succeeds.

    A symbolic link keeps its place: the file behind it is replaced. A device, a pipe or a terminal is written to.

    Args:
        path: file to write.
        is_new: a file that another process has put there meanwhile is an error, and not replaced.
        before: called with the temporary path before the file has its name; not for devices and pipes.

    Raises:
        OSError: the disk is full or not writable, or `path` is a folder; the earlier content of `path` is intact.
    """
    stream = is_stream(path)
    if not stream:
        path = path.resolve()
    with TemporaryDirectory() if stream else nullcontext() as elsewhere:
        temporary = beside(path) if elsewhere is None else Path(elsewhere) / "content"
        try:
            yield temporary
            if stream:
                with temporary.open("rb") as content, path.open("ab") as target:
                    shutil.copyfileobj(content, target)
            else:
                flush(temporary)
                before(temporary)
                _rename(temporary, path, is_new=is_new)
                flush(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _rename(temporary: Path, path: Path, *, is_new: bool) -> None:
    """Give a temporary file its name; FileExistsError if it must be new and is not."""
    if is_new:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
        else:
            temporary.unlink()
            return
    os.replace(temporary, path)


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe, or an open file of a process."""
    if not os.path.lexists(path):
        return False
    through = [Path(os.path.abspath(path))]
    while through[-1].is_symlink() and len(through) < MOST_LINKS:
        through.append(Path(os.path.normpath(through[-1].parent / os.readlink(through[-1]))))
    if any(one.is_relative_to("/proc") for one in through):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # a link to a file that does not exist yet
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def beside(path: Path) -> Path:
    """Return a temporary name of this process in the folder of `path`, which is created; nothing stands under the name.

    Raises:
        OSError: the folder is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in ("", *map(str, range(10))):
        temporary = path.with_name(f".{path.name}.tmp.{socket.gethostname()}.{os.getpid()}{number}")
        if not temporary.is_dir():
            break
    temporary.unlink(missing_ok=True)
    return temporary


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a small file so that a reader sees the old content or the new, never a part."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
