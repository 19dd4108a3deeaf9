"""Scenes written by rows as shards of one image, so that no array of the size of a scene is in memory.

Legend: Z latent channels, h, w latent; C bands, H, W image.
"""

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc.core.artifacts import atomic_replace
from dithc.core.logging import user_error
from dithc.core.units import format_bytes
from dithc.sample.generate import ImageGenerator
from dithc.sample.shards import ImageShards, as_stored

MIN_LATENT_COPIES = 6  # minimum, in sizes of all latents of a scene; 10 to 13 were measured
SPARE_BYTES = 64 << 20  # for files besides the arrays
STRIP_ROWS = 64  # rows converted to the stored format at a time
PREVIEW_PIXELS = 512  # maximum side in pixels of a scene's preview


def check_memory(shape: tuple[int, int, int], *, free: int) -> None:
    """Raise UserError if latents (Z, h, w) of a scene, complete on every rank, exceed `free` bytes per rank."""
    latents = math.prod(shape) * torch.float32.itemsize
    if MIN_LATENT_COPIES * latents > free:
        raise user_error(
            f"a scene of {shape[0]} x {shape[1]} x {shape[2]} latents does not fit in memory",
            got=f"{format_bytes(free)} free per rank",
            expected=f"at least {format_bytes(MIN_LATENT_COPIES * latents)}: every rank holds {MIN_LATENT_COPIES} or more "
            f"tensors of {format_bytes(latents)}",
            fix="lower `image_size` of the evaluation, use a codec with fewer latents (`pixel` has one per number), "
            "start fewer ranks per node, or request more memory (`resources: {sample: {mem_mb}}`)",
        )


def check_disk(shards: ImageShards, missing: Sequence[int], *, shape: tuple[int, int, int], free: int) -> None:
    """Raise UserError if the disk cannot store all missing scenes (C, H, W), one per shard."""
    pixels = shape[1] * shape[2]
    needed = len(missing) * pixels * (shape[0] * np.dtype(np.float16).itemsize + 3)
    if missing and needed + SPARE_BYTES > free:
        raise user_error(
            f"{len(missing)} scene(s) of {shape[0]} x {shape[1]} x {shape[2]} are larger than the disk of {shards.folder}",
            got=f"{free / 1e9:.2f} GB free",
            expected=f"{(needed + SPARE_BYTES) / 1e9:.2f} GB: fp16 data and an 8-bit display",
            fix="free disk space, choose another folder, or lower `image_size` or `num_images` of the evaluation",
        )


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def write_scene(shards: ImageShards, shard: int, images: ImageGenerator, latent: Tensor, *, start: float) -> None:
    """Decode a scene's latent (Z, h, w), present on every rank of the team, and write the shard on the first rank.

    `start` is the start time by `time.monotonic`. Raises UserError if the scene is not finite or the disk is full.
    """
    seams = round(images.seams(latent[None]), 4)
    (index,) = shards.indices(shard)
    if images.team.members.rank > 0:
        for _ in images.rows(latent, index):
            pass
        return
    shape = images.codec.in_bands, *images.image_size
    try:
        shards.sidecar(shard).unlink(missing_ok=True)
        with ExitStack() as stack:
            targets: list[_Rows] = []
            for kind, channels, dtype in (("shard", shape[0], np.float16), ("rgb", 3, np.uint8)):
                temporary = stack.enter_context(atomic_replace(shards.path(shard, kind=kind)))
                targets.append(_Rows(stack.enter_context(temporary.open("wb")), (channels, *shape[1:]), dtype))
            # Conversion temporarily needs several times the size of the rows (C, rows, W).
            for rows in chain.from_iterable(
                torch.split(part, STRIP_ROWS, dim=1) for part in images.rows(latent, index)
            ):
                image = rows.numpy()
                shards.check(shard, image[None])
                targets[0].append(as_stored(image))
                targets[1].append(images.codec.to_rgb(rows[None])[0])
        labels = images.labels(shards.indices(shard))
        seconds = (time.monotonic() - start) * images.team.members.size
        shards.finish(shard, shape=shape, labels=labels, seconds=seconds, seam_ratio=seams)
    except OSError as error:
        raise shards.unwritten(shard, error) from error


class _Rows:
    """Array (1, C, H, W) in a file, written in groups of rows."""

    def __init__(self, file: IO[bytes], shape: tuple[int, int, int], dtype: Any) -> None:
        self._file, self._shape, self._dtype, self._num_rows = file, shape, np.dtype(dtype), 0
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (1, *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        self._start = file.tell()

    def append(self, rows: npt.NDArray[Any]) -> None:
        _, height, width = self._shape
        for band, part in enumerate(rows):
            self._file.seek(self._start + (band * height + self._num_rows) * width * self._dtype.itemsize)
            self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self._num_rows += rows.shape[1]


def preview(shards: ImageShards) -> npt.NDArray[np.uint8]:
    """Return the display of the first scene (1, 3, h, w), subsampled to at most `PREVIEW_PIXELS` pixels per side."""
    rgb = np.load(shards.path(0, kind="rgb"), mmap_mode="r")
    stride = -(-rgb.shape[-1] // PREVIEW_PIXELS)
    return np.array(rgb[..., ::stride, ::stride])
