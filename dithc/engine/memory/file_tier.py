"""File behind a tier: all blocks are allocated before use, and it is unnamed, so that no file remains."""

import errno
import mmap
import os
import shutil
import tempfile
from pathlib import Path

from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.units import GIB

log = get_logger(__name__)

FIX = "choose another folder for the file tier, or make the file smaller"


def create(folder: Path, size_bytes: int) -> int:
    """Return a descriptor of a new unnamed file in `folder`, all blocks reserved; UserError if that is impossible."""
    subject = f"file tier in {folder}"
    if not folder.is_dir():
        got = "not a folder" if folder.exists() else "no such folder"
        raise user_error(subject, got=got, expected="a folder on a local disk", fix=f"create it, or {FIX}")
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        raise _too_small(subject, free_bytes, size_bytes)
    try:
        with tempfile.TemporaryFile(prefix=".dithc-tier-", dir=folder) as file:  # unnamed at once
            os.posix_fallocate(file.fileno(), 0, size_bytes)
            descriptor = os.dup(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _too_small(subject, shutil.disk_usage(folder).free, size_bytes) from error
        raise user_error(
            subject, got=error.strerror, expected=f"a folder that accepts a file of {size_bytes} bytes", fix=FIX
        ) from error
    if _is_memory(folder):
        log.warning(
            "%s: this file system stores files in memory, so the tier uses the memory that it should save", subject
        )
    return descriptor


def open_direct(descriptor: int) -> int | None:
    """Return a descriptor of the file that bypasses the page cache; None, with the reason in the log, if impossible."""
    direct = None
    try:
        direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(direct, [page], 0)
    except OSError as error:
        log.info(
            "file tier: copies use the page cache, because the file system rejects direct access: %s", error.strerror
        )
        if direct is not None:
            os.close(direct)
        return None
    return direct


def _too_small(subject: str, free_bytes: int, size_bytes: int) -> UserError:
    return user_error(
        subject,
        got=f"{free_bytes / GIB:.2f} GiB free ({free_bytes} bytes)",
        expected=f"{size_bytes / GIB:.2f} GiB ({size_bytes} bytes)",
        fix=f"free some space, or {FIX}",
    )


def _is_memory(folder: Path) -> bool:
    """Return whether the mount that contains a folder is a tmpfs or ramfs."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    containing = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    containing.sort(key=lambda mount: len(mount[0]))  # stable: the latest mount of a folder hides earlier ones
    return bool(containing) and containing[-1][1] in ("tmpfs", "ramfs")
