"""Sequential file writing that bypasses the page cache if the file system supports it.

Writing through the page cache costs 1.5 to 3 core-seconds per GiB for copying and page management, which a concurrent
training run loses. Direct writing costs 0.1.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from functools import cache
from mmap import PAGESIZE, mmap
from pathlib import Path

import numpy as np

from dithc.core.logging import get_logger

# A block is long compared with a thread switch, and short enough that a canceled write ends soon. It consists of
# complete pages.
BLOCK_BYTES = 8 << 20
# Cached bytes are flushed in these steps, because a single flush at the end would delay other writers to the disk.
FLUSH_BYTES = 64 << 20
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
log = get_logger(__name__)


def whole_blocks(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield contiguous bytes as blocks of `BLOCK_BYTES`, the last one shorter, in one page-aligned buffer."""
    memory = mmap(-1, BLOCK_BYTES)
    block, filled = np.frombuffer(memory, dtype=np.uint8), 0
    for part in parts:
        remaining = np.frombuffer(part, dtype=np.uint8)
        while len(remaining):
            count = min(len(remaining), BLOCK_BYTES - filled)
            np.copyto(block[filled : filled + count], remaining[:count])  # releases the GIL
            remaining, filled = remaining[count:], filled + count
            if filled == BLOCK_BYTES:
                yield block.data
                filled = 0
    if filled:
        yield block[:filled].data


class DirectFileWriter:
    """Context manager of a file that is written from the start; all methods raise OSError as the system does."""

    def __init__(self, path: Path) -> None:
        self._is_direct, self._unflushed = bool(DIRECT), 0
        try:
            self._file = os.open(path, FLAGS | DIRECT, 0o666)
        except OSError as error:
            if not DIRECT or error.errno != errno.EINVAL:
                raise
            self._file = os.open(path, FLAGS, 0o666)
            self._is_direct = False
        if not self._is_direct:
            _log_cached(path.parent)

    def __enter__(self) -> "DirectFileWriter":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write(self, block: memoryview) -> None:
        """Append a page-aligned block of complete pages; only the last block may have another length."""
        if len(block) % PAGESIZE:
            self._disable_direct()
        while len(block):
            try:
                written = os.write(self._file, block)
            except OSError as error:
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._disable_direct()  # the file system requires larger alignment, or rejects direct writes only now
                continue
            block = block[written:]
            if written % PAGESIZE:
                self._disable_direct()  # the disk is nearly full, and the next write raises
            self._unflushed += written
        if not self._is_direct and self._unflushed >= FLUSH_BYTES:
            os.fdatasync(self._file)
            self._unflushed = 0

    def flush(self) -> None:
        os.fsync(self._file)

    def _disable_direct(self) -> None:
        if self._is_direct:
            self._is_direct = False
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~DIRECT)


@cache
def _log_cached(folder: Path) -> None:
    log.info(f"files in {folder} are written through the page cache: its file system does not support direct writes")
