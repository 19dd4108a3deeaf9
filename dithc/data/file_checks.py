"""Checks of user files before use: regular files inside their product, with pixels that fit into memory."""

import hashlib
import os
import resource
import stat
from collections.abc import Mapping
from functools import cache
from io import BufferedReader
from pathlib import Path

from dithc.core.artifacts import sha256_file
from dithc.core.logging import UserError, user_error
from dithc.core.units import format_bytes
from dithc.engine.hardware import Limits

SCENE_BYTES = 32 << 30
"""Most bytes of pixels per scene, on any machine: 50 times the largest scene that satellites deliver."""
FILE_TYPES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
COPY_FIX = "copy the file again from its source, or remove it from the folder"
LINK_FIX = "copy the product with files instead of links (cp -rL), or download it again"


def open_regular(path: Path, *, inside: Path | None = None) -> BufferedReader:
    """Open a file for reading after `check_regular`; raise UserError as `check_regular`, or without permission."""
    check_regular(path, inside=inside)
    try:
        return path.open("rb")
    except PermissionError as error:
        fix = f"change its permissions: chmod u+r '{printable(str(path))}'"
        raise _unusable(path, got=error.strerror, expected="a file that this user can read", fix=fix) from error


def check_regular(path: Path, *, inside: Path | None = None) -> None:
    """Raise UserError unless `path` is a regular file, or a link to one, in the folder `inside` (None: anywhere).

    The file is not opened, because opening a pipe may block and a device may never end. `..`, absolute paths and links
    must not lead out of `inside`.
    """
    check_inside(path, inside)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        got = f"a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else error.strerror
        raise _unusable(path, got=got, expected="a file", fix=COPY_FIX) from error
    if not stat.S_ISREG(mode):
        raise _unusable(path, got=FILE_TYPES.get(stat.S_IFMT(mode), "no file"), expected="a regular file", fix=COPY_FIX)


def check_inside(path: Path, folder: Path | None) -> None:
    """Raise UserError if a path or its links lead out of a folder; no file is opened."""
    if folder is None:
        return
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        got, expected = f"a path that leads to {real}", f"a file inside {folder.name}"
        raise _unusable(path, got=got, expected=expected, fix=LINK_FIX)


def check_memory(path: Path, num_bytes: int, *, description: str) -> None:
    """Raise UserError if `num_bytes` of pixels exceed `max_pixel_bytes`; `description` is their shape and type."""
    if num_bytes > max_pixel_bytes():
        raise _unusable(
            path,
            got=f"{description}: {format_bytes(num_bytes)} of pixels",
            expected=f"at most {format_bytes(max_pixel_bytes())}: half of the available memory, and 32 GiB",
            fix="cut it into smaller scenes (gdal_translate -srcwin), or stage it on a machine with more memory",
        )


def max_pixel_bytes() -> int:
    """Return the most bytes of pixels per scene: half of the available memory, at most `SCENE_BYTES`."""
    return min(2 * SCENE_BYTES, memory_bytes()) // 2


@cache
def memory_bytes() -> int:
    """Return the memory available to this process, by machine, control group and resource limits."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limits = [limit for limit in soft if limit != resource.RLIM_INFINITY]
    return min(machine_bytes, Limits.read().memory_limit_bytes or machine_bytes, *limits)


def printable(text: str) -> str:
    """Escape the undecodable bytes of a file name as `\\udcff`, because tables and logs require UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _unusable(path: Path, *, got: object, expected: str, fix: str) -> UserError:
    return user_error(f"{path} cannot be read", got=got, expected=expected, fix=fix)


def combined_sha256(files: Mapping[str, Path]) -> str:
    """Return one SHA-256 for the files of a scene: the hash of a single file, else of all names and hashes in order."""
    if len(files) == 1:
        return sha256_file(*files.values())
    digest = hashlib.sha256()
    for name in sorted(files, key=Path):
        digest.update(f"{name} {sha256_file(files[name])}\n".encode())
    return digest.hexdigest()
