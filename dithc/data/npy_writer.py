"""Reading and incremental writing of large .npy files."""

import io
import math
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError, user_error
from dithc.data.file_checks import check_memory, open_regular

SHARD_BYTES = 1 << 30
"""Largest shard: small enough to copy and hash separately, large enough to keep the number of files low."""
NO_SPACE = outputs.NO_SPACE


class NpyWriter:
    """Writer of a .npy file (n, *shape) that grows by appended samples without holding them in memory.

    numpy pads the header for growth of the first axis, so that the final header replaces the first in place.
    """

    def __init__(self, path: Path, *, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.path, self.shape, self.dtype, self.count = path, shape, np.dtype(dtype), 0
        self._file: BinaryIO = path.open("wb")
        self._file.write(header_of((0, *shape), self.dtype))

    def append(self, samples: npt.NDArray[Any]) -> None:
        assert samples.shape[1:] == self.shape, f"samples {samples.shape[1:]} for a file of {self.shape}"
        assert samples.dtype == self.dtype, f"samples {samples.dtype} for a file of {self.dtype}"
        self._file.write(np.ascontiguousarray(samples).data)
        self.count += len(samples)

    def close(self, *, count: int | None = None) -> None:
        """Write the final header and flush to disk; set `count` if another process writes the samples."""
        self.count = self.count if count is None else count
        self._file.seek(0)
        self._file.write(header_of((self.count, *self.shape), self.dtype))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Close an incomplete file; a second error (the disk is full) must not hide the first."""
        with suppress(OSError):
            self._file.close()


def header_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a .npy file (n, *shape), which has the same length for every n."""
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, description)
    return written.getvalue()


class ShardWriter:
    """Writer of samples to `<stem>-00000.npy`, `<stem>-00001.npy`, ... of at most `SHARD_BYTES` each.

    A full shard holds a multiple of 64 samples if its capacity is at least 64.
    """

    def __init__(self, folder: Path, stem: str, *, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.folder, self.stem, self.shape, self.dtype = folder, stem, shape, np.dtype(dtype)
        capacity = max(1, SHARD_BYTES // (int(np.prod(shape)) * self.dtype.itemsize))
        self.capacity = capacity // 64 * 64 or capacity
        self.files: list[dict[str, Any]] = []
        self._open: NpyWriter | None = None

    def append(self, samples: npt.NDArray[Any]) -> list[tuple[int, int]]:
        """Append samples (n, *shape); return (shard, row) of each."""
        places: list[tuple[int, int]] = []
        while len(samples):
            writer = self._writer()
            part, samples = np.split(samples, [self.capacity - writer.count])
            places += [(len(self.files), writer.count + i) for i in range(len(part))]
            writer.append(part)
        return places

    def _writer(self) -> NpyWriter:
        if self._open is not None and self._open.count == self.capacity:
            self.close()
        if self._open is None:
            path = self.folder / f"{self.stem}-{len(self.files):05d}.npy"
            self._open = NpyWriter(path, shape=self.shape, dtype=self.dtype)
        return self._open

    def close(self) -> list[dict[str, Any]]:
        """Complete the open shard; return file and count of every shard."""
        if self._open is not None:
            self._open.close()
            self.files.append({"file": self._open.path.name, "count": self._open.count})
            self._open = None
        return self.files


def check_length(path: Path, size: int) -> None:
    """Raise UserError, without opening it, unless a .npy file has `size` bytes after its header (a multiple of 64)."""
    try:
        header = os.stat(path).st_size - size
        got = "whole" if header in (64, 128, 192) else f"{header + size} bytes"
    except OSError as error:
        got = str(error)
    if got != "whole":
        raise _altered(path, got=got, expected=f"{size} bytes after a header of 64 or 128")


def open_npy(path: Path, *, count: int | None = None) -> npt.NDArray[Any]:
    """Map a .npy file, read-only; raise UserError if it is missing, truncated, or has other than `count` samples."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _altered(path, got=error, expected="a .npy file") from error
    if count is not None and len(array) != count:
        raise _altered(path, got=f"{len(array)} samples", expected=f"{count} samples, as in its index")
    return array


def _altered(path: Path, *, got: object, expected: str) -> UserError:
    return user_error(
        f"{path} cannot be read",
        got=got,
        expected=f"the complete array that its stage wrote: {expected}",
        fix="remove the folder's manifest.json and run the stage again",
    )


def release(array: npt.NDArray[Any]) -> None:
    """Release the memory of a mapped file (`open_npy`); later accesses read it from disk."""
    if isinstance(array.base, mmap.mmap):
        array.base.madvise(mmap.MADV_DONTNEED)


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read a .npy file of the user in native byte order, after a comparison of header and length.

    Raises OSError for a file that is not .npy of numbers or has another length, UserError if not regular or too large.
    """
    with open_regular(path) as file:
        try:
            version = np.lib.format.read_magic(file)
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = header(file)
        except Exception as error:  # numpy parses the header as Python: syntax, tokens, types, nesting, encodings
            raise OSError(f"it has no valid .npy header: {str(error) or type(error).__name__}") from error
        if dtype.kind not in "biufc":
            raise OSError(f"its type {dtype} is not numeric")
        count, size = math.prod(shape), path.stat().st_size - file.tell()
        if any(side < 1 for side in shape) or count * dtype.itemsize != size:
            raise OSError(f"its header declares {shape} of {dtype}, {count * dtype.itemsize} bytes; it contains {size}")
        check_memory(path, size, description=f"{shape} of {dtype}")
        array = np.fromfile(file, dtype=dtype, count=count).astype(dtype.newbyteorder("="), copy=False)
        return array.reshape(shape, order="F" if fortran else "C")
