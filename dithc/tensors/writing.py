"""A new file, written from start to end past the system's page cache where its file system can.

Through the cache a GiB takes 1.5 to 3 seconds of a core (a copy, and pages to find, to book and to clean), which a training
beside it has to do without; past it a tenth of a second.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from functools import cache
from mmap import PAGESIZE, mmap
from pathlib import Path
from types import TracebackType

import numpy as np

from dithc.log import logger

# A block is long beside the time to change between threads, and short beside what a cancelled write may still take; whole pages.
BLOCK_BYTES = 8 << 20
# Bytes in the cache go to the disk this many at a time: a flush of everything at the end would hold up other writers of the disk.
FLUSH_BYTES = 64 << 20
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
log = logger(__name__)


def whole_blocks(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes as blocks of `BLOCK_BYTES`, the last one shorter: views of memory that starts with a page and is used again.

    Args:
        parts: of any length, contiguous bytes.
    """
    memory = mmap(-1, BLOCK_BYTES)
    block, filled = np.frombuffer(memory, dtype=np.uint8), 0
    for part in parts:
        rest = np.frombuffer(part, dtype=np.uint8)
        while len(rest):
            count = min(len(rest), BLOCK_BYTES - filled)
            np.copyto(block[filled : filled + count], rest[:count])  # lets other Python threads run meanwhile
            rest, filled = rest[count:], filled + count
            if filled == BLOCK_BYTES:
                yield block.data
                filled = 0
    if filled:
        yield block[:filled].data


class NewFile:
    """A file to write, to be used in a `with`; what was there is gone."""

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            OSError: the folder is missing or not writable.
        """
        self._is_direct, self._unflushed = bool(DIRECT), 0
        try:
            self._file = os.open(path, FLAGS | DIRECT, 0o666)
        except OSError as error:
            if not DIRECT or error.errno != errno.EINVAL:
                raise
            self._file = os.open(path, FLAGS, 0o666)
            self._is_direct = False
        if not self._is_direct:
            _say_cached(path.parent)

    def __enter__(self) -> "NewFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, block: memoryview) -> None:
        """Adds a block: of any length at the end of the file, of whole pages before it, in memory that starts with a page.

        Raises:
            OSError: the disk is full or not writable.
        """
        if len(block) % PAGESIZE:
            self._go_through_cache()
        while len(block):
            try:
                written = os.write(self._file, block)
            except OSError as error:
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._go_through_cache()  # a file system that wants more than a page, or says only now that it cannot
                continue
            block = block[written:]
            if written % PAGESIZE:
                self._go_through_cache()  # the disk is nearly full: the next write says so
            self._unflushed += written
        if not self._is_direct and self._unflushed >= FLUSH_BYTES:
            os.fdatasync(self._file)
            self._unflushed = 0

    def flush(self) -> None:
        """Forces all of it to the disk.

        Raises:
            OSError: the disk is full or not writable.
        """
        os.fsync(self._file)

    def _go_through_cache(self) -> None:
        """For the rest of the file."""
        if self._is_direct:
            self._is_direct = False
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~DIRECT)


@cache
def _say_cached(folder: Path) -> None:
    log.info(f"files in {folder} are written through the page cache: its file system has no direct writes")
