"""Where archives are unpacked, for as long as what is in them is read.

A folder there belongs to a process that lives: it holds a lock of it (flock), which the kernel ends with the process, however it
ends. The name of the machine is in the folder's name, as other machines may share the place and not the locks.
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
"""Of the disk, left alone."""


class NoRoom(UserError):
    """The disk lacks, not the archive: nothing to go on with the next one for."""


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
    """Removes the folders that processes of this user on this machine left when they were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(_prefix())}*"):
        with suppress(OSError):  # it is held by a process that lives, it is gone by now, or nothing is locked here
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
    """A new folder that no other process takes for abandoned."""
    while True:
        with tempfile.TemporaryDirectory(prefix=_prefix(), ignore_cleanup_errors=True) as name:
            lock = None
            try:
                lock = _locked(Path(name))
            except (FileNotFoundError, BlockingIOError):  # taken for abandoned before it was locked
                continue
            except OSError:  # nothing is locked here, and nothing taken for abandoned
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
    """Locks a folder; the lock ends when the descriptor is closed, or its process ends.

    Raises:
        BlockingIOError: another process has it.
        FileNotFoundError: the folder is gone.
        OSError: it is no folder, or the file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()  # else it was removed before the lock was had
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _prefix() -> str:
    return f"dithc-{platform.node()}-"


def check_disk(archive: Path, num_bytes: int, folder: Path) -> None:
    """Raise NoRoom if the disk has no room for the bytes to unpack."""
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if num_bytes > free:
        raise no_room(archive, got=f"{num_bytes / 2**30:.1f} GiB to unpack")


def no_room(archive: Path, *, got: str) -> NoRoom:
    """What is said where the disk lacks."""
    return NoRoom(
        str(
            problem(
                f"there is no room to unpack {archive.name}",
                got=got,
                expected=f"that much free in {tempfile.gettempdir()}, and {SPARE_BYTES / 2**30:g} GiB that is left alone",
                fix="let the variable TMPDIR name a folder with room, or unpack the product yourself",
            )
        )
    )
