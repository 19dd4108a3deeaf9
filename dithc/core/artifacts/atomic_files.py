"""Atomic, durable writes of files, and their hashes."""

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

from dithc.core.integrity import require_regular_file

MAX_LINKS = 40  # limit of the kernel
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # errors of file systems without hard links


def sha256_file(path: Path) -> str:
    with require_regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Flush a file or the entries of a folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_replace(
    path: Path, *, is_new: bool = False, before: Callable[[Path], object] = lambda temporary: None
) -> Iterator[Path]:
    """Yield a temporary path for a file that replaces `path` if the body succeeds.

    A symbolic link remains: the target file is replaced. The content is written to a device, pipe or terminal directly.

    Args:
        is_new: Raise FileExistsError, without replacing the file, if another process has created it.
        before: Called with the temporary path before the file gets its name; not for devices and pipes.

    Raises:
        OSError: The disk is full or not writable, or `path` is a folder; the earlier content of `path` is intact.
    """
    stream = is_stream(path)
    if not stream:
        path = path.resolve()
    with TemporaryDirectory() if stream else nullcontext() as folder:
        temporary = unused_name(path) if folder is None else Path(folder) / "content"
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
    """Rename a temporary file; raises FileExistsError if `is_new` is set and the name exists."""
    try:
        if is_new:
            os.link(temporary, path)
            temporary.unlink()
            return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    os.replace(temporary, path)


def is_stream(path: Path) -> bool:
    """Return True if a path leads to a device, a pipe, or an open file of a process."""
    if not os.path.lexists(path):
        return False
    links = [Path(os.path.abspath(path))]
    while links[-1].is_symlink() and len(links) < MAX_LINKS:
        links.append(Path(os.path.normpath(links[-1].parent / os.readlink(links[-1]))))
    if any(link.is_relative_to("/proc") for link in links):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # a link to a file that does not exist yet
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def unused_name(path: Path) -> Path:
    """Return an unused temporary name of this process next to `path`, and create the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in ("", *map(str, range(10))):
        temporary = path.with_name(f".{path.name}.tmp.{socket.gethostname()}.{os.getpid()}{number}")
        if not temporary.is_dir():
            break
    temporary.unlink(missing_ok=True)
    return temporary


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a small file atomically: readers get the old or the new content."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
