"""Input files of a scene, and their state without reading, which detects changes."""

import hashlib
import os
from bisect import bisect_left
from itertools import islice, takewhile
from pathlib import Path

LENGTH = 16
ENDS = (".", "_", "-")


class Beside:
    """Finder of files next to scenes; each folder is listed once."""

    def __init__(self) -> None:
        self._names: dict[Path, list[str]] = {}

    def __call__(self, path: Path, stem: str | None = None) -> list[Path]:
        """Return all files with the start of the scene's name: the scene, metadata, masks, coefficients, world files.

        `stem` is that start, by default the scene's name without its last suffix, then without one of `ENDS`.
        """
        ends, stem = ("",) if stem is not None else ENDS, path.stem if stem is None else stem
        if path.parent not in self._names:
            self._names[path.parent] = sorted(os.listdir(path.parent))
        names = self._names[path.parent]
        alike = takewhile(lambda name: name.startswith(stem), islice(names, bisect_left(names, stem), None))
        return [path.with_name(name) for name in alike if name.startswith(ends, len(stem))]


def below(folder: Path) -> list[Path]:
    """Return all files below a folder, including hidden files."""
    return sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)


def state_of(paths: list[Path], *, relative_to: Path) -> tuple[str | None, int]:
    """Return a digest of names, sizes and times of files (None if one is inaccessible), and their bytes.

    The change time (ctime) cannot be set, which detects a file that was altered in place and given its old
    modification time.
    """
    digest, size = hashlib.sha256(), 0
    try:
        for path in paths:
            seen = path.stat()
            name = os.path.relpath(path, relative_to)
            digest.update(
                f"{name}\0{seen.st_size}\0{seen.st_mtime_ns}\0{seen.st_ctime_ns}\n".encode(errors="surrogateescape")
            )
            size += seen.st_size
    except OSError:  # reported by the reader
        return None, size
    return digest.hexdigest()[:LENGTH], size
