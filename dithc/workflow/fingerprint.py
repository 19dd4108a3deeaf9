"""Fingerprints that detect changes of user files by samples, independent of times and locations."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dithc.core.artifacts import atomic_write
from dithc.core.integrity import dump_checksummed, load_document, require_regular_file
from dithc.core.logging import get_logger
from dithc.core.system_files import is_system_file

SIZED_FILES = 10_000  # files, in sorted order, with names and sizes; further files count by name only
SAMPLED_FILES = 1_000  # files with a block from the middle
SAMPLED_BYTES = 4096
BLOCKS, BLOCK_BYTES = 64, 1 << 16  # sample of a single file, spread over it; smaller files are read completely
LENGTH = 16
log = get_logger(__name__)


def fingerprint(path: Path, *, with_name: bool) -> str | None:
    """Return a fingerprint of the content at a path; None if it does not exist.

    A folder: sorted names of all visible files below it, the sizes of the first 10,000, and 4 KiB from the middle of each of the
    first 1,000. A file: its size and 64 blocks of 64 KiB, and its name if `with_name` (a scene name). Copies, links and moved
    folders keep the fingerprint. Changes in place outside of the sampled bytes are not detected.
    """
    digest = hashlib.sha256()
    if path.is_dir():
        for number, (name, file) in enumerate(_visible_files(str(path), "", (os.path.realpath(path),))):
            digest.update(os.fsencode(name) + b"\0")
            if number < SIZED_FILES:
                digest.update(_sample(file, blocks=1 if number < SAMPLED_FILES else 0, block_bytes=SAMPLED_BYTES))
    elif path.exists():
        digest.update(os.fsencode(path.name) + b"\0" if with_name else b"")
        digest.update(_sample(str(path), blocks=BLOCKS, block_bytes=BLOCK_BYTES))
    else:
        return None
    return digest.hexdigest()[:LENGTH]


class FileFingerprints:
    """Fingerprints of the user's files, computed once and stored in the JSON file `path`.

    Missing files keep their fingerprint, so ingested scenes may move to an archive without being ingested again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._computed: dict[str, str] = {}

    def fingerprint(self, path: str, *, with_name: bool) -> str | None:
        """Return the fingerprint of a path; for missing files, the stored fingerprint of the last run."""
        key = _key(path, with_name=with_name)
        if key not in self._computed and (
            digest := fingerprint(Path(path), with_name=with_name) or self._stored().get(key)
        ):
            self._computed[key] = digest
        return self._computed.get(key)

    def is_unchanged(self, path: str, *, with_name: bool) -> bool:
        """Return whether the content is the same as in the last run; False if unknown."""
        stored = self._stored().get(_key(path, with_name=with_name))
        return stored is not None and stored == self.fingerprint(path, with_name=with_name)

    def save(self) -> None:
        stored = self._stored()
        if stored | self._computed != stored:
            atomic_write(self.path, dump_checksummed(stored | self._computed))

    def _stored(self) -> dict[str, str]:
        try:
            return dict(load_document(require_regular_file(self.path).read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            log.warning(f"{self.path} is unreadable, fingerprints of moved files are lost: {error}")
            return {}


def _key(path: str, *, with_name: bool) -> str:
    return f"{path} as scenes" if with_name else path


def _visible_files(folder: str, prefix: str, parents: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield relative name and path of every visible file; memory holds one folder's entries."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in listing)
    except OSError:  # the reader rejects an unreadable folder
        entries = []
    for name, is_folder, is_link in entries:
        path = f"{folder}/{name}"
        if is_system_file(name):
            continue
        if not is_folder:
            yield prefix + name, path
        elif not (is_link and os.path.realpath(path) in parents):  # a link to a parent folder would recurse forever
            real = os.path.realpath(path) if is_link else f"{parents[-1]}/{name}"
            yield from _visible_files(path, f"{prefix}{name}/", (*parents, real))


def _sample(path: str, *, blocks: int, block_bytes: int) -> bytes:
    """Return size and hash of sampled blocks; of all bytes if the file is smaller than the sample."""
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):  # opening a pipe can block forever; the reader rejects it
            return b"unreadable\0"
        size = state.st_size
        text = f"{size}\0".encode()
        if not blocks:
            return text
        digest = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            if size <= blocks * block_bytes:
                starts = [*range(0, size, block_bytes)]
            else:  # the middle block, or blocks from start to end
                last = size - block_bytes
                starts = [last // 2] if blocks == 1 else [last * number // (blocks - 1) for number in range(blocks)]
            for start in starts:
                file.seek(start)
                digest.update(file.read(block_bytes))
        return text + digest.digest()
    except OSError:
        return b"unreadable\0"
