"""Temporary folders for unpacked archives.

A live process holds a lock (flock) on its folder, which the kernel releases when the process ends. The folder's name
contains the host name, because hosts may share the file system without sharing locks.
"""

import errno
import fcntl
import glob
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dithc.data.scene import Refused
from dithc.log import UserError, problem
from dithc.runs import outputs

SPARE_BYTES = 1 << 30
"""Disk space that stays free."""


class NoRoom(UserError):
    """Insufficient disk space, which also affects all further archives."""


@contextmanager
def scratch(archive: Path) -> Iterator[Path]:
    """Yield an empty folder in TMPDIR and remove it at the end; NoRoom if the disk becomes full.

    Errors name its files below the archive instead, so that they are the same in every run.
    """
    with _locked_folder() as name:
        try:
            yield Path(name)
        except NoRoom:
            raise
        except Refused as error:
            texts = {key: getattr(error, key).replace(name, str(archive)) for key in ("got", "expected", "fix")}
            raise Refused(error.reason, error.what.replace(name, str(archive)), **texts) from error
        except (UserError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_room(archive, got=str(error.strerror)) from error
            kind = UserError if isinstance(error, UserError) else OSError
            raise kind(str(error).replace(name, str(archive))) from error


def remove_abandoned() -> None:
    """Remove the folders that killed processes of this user left on this machine."""
    for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(_prefix())}*"):
        with suppress(OSError):  # locked by a live process, already removed, or without lock support
            if path.lstat().st_uid != os.getuid():
                continue
            lock = _locked(path)
            try:
                if outputs.OutputFolder(path).is_scratch:
                    outputs.remove(path, reason="a process was killed while it read an archive there")
            finally:
                os.close(lock)


@contextmanager
def _locked_folder() -> Iterator[str]:
    """Yield a new folder that no other process considers abandoned."""
    while True:
        with tempfile.TemporaryDirectory(prefix=_prefix(), ignore_cleanup_errors=True) as name:
            lock = None
            try:
                lock = _locked(Path(name))
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


def _locked(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; BlockingIOError if another process holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()  # fails if the folder was removed before the lock was acquired
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _prefix() -> str:
    return f"dithc-{platform.node()}-"


def check_disk(archive: Path, num_bytes: int, folder: Path) -> None:
    """Raise NoRoom if the disk space is insufficient for the bytes to unpack."""
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if num_bytes > free:
        raise no_room(archive, got=f"{num_bytes / 2**30:.1f} GiB to unpack")


def no_room(archive: Path, *, got: str) -> NoRoom:
    return NoRoom(
        str(
            problem(
                f"the disk space is insufficient to unpack {archive.name}",
                got=got,
                expected=f"that much free in {tempfile.gettempdir()}, and {SPARE_BYTES / 2**30:g} GiB that stay free",
                fix="set TMPDIR to a folder with more space, or unpack the product yourself",
            )
        )
    )
