"""Stacks of scenes of one shape in .npy files, and a canvas for scenes that fill a stack."""

import mmap
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.data.npy_writer import SHARD_BYTES, NpyWriter, header_of
from dithc.data.scene import Array, Mask, PixelBuffer

SCENES_PER_STACK = 4096
OPEN_STACKS = 16
"""Most open stacks. Scenes of many different shapes must not hold a file open for each."""


class Stacks:
    """Writer of `stack-00000.npy` (n, C, H, W) and, if it has invalid pixels, `stack-00000.mask.npy` (n, H, W)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[dict[str, Any]] = []
        self._open: OrderedDict[tuple[int, ...], _Stack] = OrderedDict()

    def append(
        self, pixels: Array | Path, mask: Array | None, *, shape: tuple[int, ...], dtype: str
    ) -> "StackLocation":
        """Append a scene (C, H, W), as array or stack file, and its mask (H, W), None if all is valid."""
        if shape in self._open and self._open[shape].is_full:
            self._close(shape)
        if shape not in self._open:
            if len(self._open) == OPEN_STACKS:
                self._close(next(iter(self._open)))
            self._open[shape] = _Stack(self.folder, len(self.entries), shape=shape, dtype=dtype)
            self.entries.append({"file": self._open[shape].path.name, "mask": None, "count": 0})
        self._open.move_to_end(shape)
        return self._open[shape].append(pixels, mask)

    def _close(self, shape: tuple[int, ...]) -> None:
        stack = self._open.pop(shape)
        for writer in filter(None, (stack.pixels, stack.mask)):
            writer.close()
        self.entries[stack.number] |= {"count": stack.count, "mask": stack.mask and stack.mask_path.name}

    def __enter__(self) -> "Stacks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for shape in list(self._open):
            if kind is None:
                self._close(shape)
                continue
            for writer in filter(None, (self._open[shape].pixels, self._open[shape].mask)):
                writer.discard()


class StackLocation:
    """Position of a scene: number and row of its stack, and file and first byte of its pixels and of its mask."""

    def __init__(self, stack: "_Stack") -> None:
        self.stack, self.row = stack.number, stack.count - 1
        self.pixels = [stack.path.name, row_offset(stack.shape, stack.dtype, self.row)]
        self.mask = stack.mask and [stack.mask_path.name, row_offset(stack.shape[1:], "uint8", self.row)]


class _Stack:
    """A growing stack file; the mask file is created with the first scene that has invalid pixels."""

    def __init__(self, folder: Path, number: int, *, shape: tuple[int, ...], dtype: str) -> None:
        self.number, self.shape, self.dtype, self.count = number, shape, dtype, 0
        self.path, self.mask_path = folder / f"stack-{number:05d}.npy", folder / f"stack-{number:05d}.mask.npy"
        self.pixels: NpyWriter | None = None
        self.mask: NpyWriter | None = None

    @property
    def is_full(self) -> bool:
        return self.count >= SCENES_PER_STACK or (self.count + 1) * array_bytes(self.shape, self.dtype) > SHARD_BYTES

    def append(self, pixels: Array | Path, mask: Array | None) -> StackLocation:
        if isinstance(pixels, Path):
            assert fills_a_stack(self.shape, self.dtype), "a file of a scene that shares its stack"
            link(pixels, self.path)
            with self.path.open("rb") as file:
                os.fsync(file.fileno())  # as for written stacks
        else:
            self.pixels = self.pixels or NpyWriter(self.path, shape=self.shape, dtype=self.dtype)
            self.pixels.append(pixels[np.newaxis])
        if mask is not None and self.mask is None:
            self.mask = NpyWriter(self.mask_path, shape=self.shape[1:], dtype=np.uint8)
            for _ in range(self.count):
                self.mask.append(np.full((1, *self.shape[1:]), Mask.VALID, np.uint8))
        if self.mask is not None:
            mask = np.full(self.shape[1:], Mask.VALID, np.uint8) if mask is None else mask
            self.mask.append(mask[np.newaxis])
        self.count += 1
        return StackLocation(self)


class FileCanvas(PixelBuffer):
    """Canvas that maps the stack file of a scene that fills a stack; smaller scenes get memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None  # of the last scene, unless it is in memory
        self._map: mmap.mmap | None = None

    def blank(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        self.discard()
        if not fills_a_stack(shape, dtype):
            return super().blank(shape, dtype)
        self.path = self.folder / "canvas.npy"
        start, size = row_offset(shape, dtype, 0), array_bytes(shape, dtype)
        NpyWriter(self.path, shape=shape, dtype=dtype).close(count=1)
        with self.path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), start, size)  # a full disk raises here instead of SIGBUS later
            self._map = mmap.mmap(file.fileno(), start + size)
        return np.frombuffer(self._map, dtype, offset=start).reshape(shape)

    def release(self) -> None:
        """Release the memory of written pixels; the system writes them to the file."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def discard(self) -> None:
        """Drop the last scene and remove its file unless it was renamed or linked."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = self._map = None


def fills_a_stack(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    return 2 * array_bytes(shape, dtype) > SHARD_BYTES


def array_bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def row_offset(shape: tuple[int, ...], dtype: npt.DTypeLike, row: int) -> int:
    """Return the offset of a row of a .npy file (n, *shape); the padded header has a constant length."""
    return len(header_of((0, *shape), np.dtype(dtype))) + row * array_bytes(shape, dtype)


def link(old: Path, new: Path) -> None:
    """Create a hard link, or a copy on file systems without links, because the file may belong to a finished folder."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)
