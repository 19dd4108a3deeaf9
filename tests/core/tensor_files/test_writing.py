"""Files of every length contain the written bytes, with and without the page cache; system errors are raised."""

import errno
import fcntl
import os
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from dithc.core.tensor_files import writing
from dithc.core.tensor_files.writing import DirectFileWriter, whole_blocks

BLOCK = 4 * PAGESIZE
LENGTHS = [0, 1, PAGESIZE - 1, PAGESIZE, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + PAGESIZE, 5 * BLOCK + 77]

needs_direct = pytest.mark.skipif(not writing.DIRECT, reason="this system has no direct writes")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(writing, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(writing, "FLUSH_BYTES", 2 * BLOCK)


def content(length: int) -> bytes:
    return np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()


def write(path: Path, data: bytes, *, part: int = 999) -> None:
    with DirectFileWriter(path) as file:
        for block in whole_blocks(memoryview(data)[start : start + part] for start in range(0, len(data), part)):
            file.write(block)
        file.flush()


def is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & writing.DIRECT)


@pytest.mark.parametrize("part", [7, 999, BLOCK, 10 * BLOCK])
def test_all_blocks_except_the_last_are_full_and_preserve_the_bytes(part):
    data = content(3 * BLOCK + 77)
    blocks = [
        bytes(block)
        for block in whole_blocks(memoryview(data)[start : start + part] for start in range(0, len(data), part))
    ]
    assert b"".join(blocks) == data
    assert [len(block) for block in blocks] == [BLOCK] * 3 + [77]


@pytest.mark.parametrize("length", LENGTHS)
def test_file_of_any_length_contains_the_written_bytes(tmp_path, length):
    path = tmp_path / "a"
    path.write_bytes(b"what was there before" * BLOCK)
    write(path, content(length))
    assert path.read_bytes() == content(length)


@needs_direct
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("refused_at", ["open", "write"])
def test_writes_use_the_cache_if_direct_writes_are_unsupported(tmp_path, monkeypatch, length, refused_at):
    """Most file systems fail at `open`, some only at the first block."""
    real_open, real_write, flags = os.open, os.write, []

    def fail_open(path, mode, *rest):
        if mode & writing.DIRECT and refused_at == "open":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, mode, *rest)

    def fail_write(file, block):
        if is_direct(file):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        flags.append(is_direct(file))
        return real_write(file, block)

    monkeypatch.setattr(os, "open", fail_open)
    monkeypatch.setattr(os, "write", fail_write)
    write(tmp_path / "a", content(length))
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == content(length)
    assert not any(flags)


@needs_direct
def test_full_blocks_are_written_directly_if_supported(tmp_path, monkeypatch):
    written, direct = os.write, []
    monkeypatch.setattr(os, "write", lambda file, block: (direct.append(is_direct(file)), written(file, block))[1])
    with DirectFileWriter(tmp_path / "a") as probe:
        if not is_direct(probe._file):
            pytest.skip(f"the file system of {tmp_path} takes no direct writes")
    write(tmp_path / "a", content(2 * BLOCK + 5))
    assert direct == [True, True, False]


def test_partial_write_is_followed_by_the_remaining_bytes(tmp_path, monkeypatch):
    """A signal or a nearly full disk can end a write early."""
    written = os.write
    monkeypatch.setattr(os, "write", lambda file, block: written(file, block[: max(PAGESIZE, len(block) // 2)]))
    write(tmp_path / "a", content(3 * BLOCK))
    assert (tmp_path / "a").read_bytes() == content(3 * BLOCK)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_system_error_is_raised_and_the_file_is_closed(tmp_path, monkeypatch, error):
    before = set(os.listdir("/proc/self/fd"))

    def fail(file, block):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match=os.strerror(error)):
        write(tmp_path / "a", content(BLOCK))
    assert set(os.listdir("/proc/self/fd")) == before
