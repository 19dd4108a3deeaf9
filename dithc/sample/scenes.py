"""Scenes written as shards of one image, by rows: nothing as large as a scene is in memory.

Legend: Z latent channels, h, w latent; C bands, H, W image.
"""

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc.log import problem, refusal
from dithc.runs import replacing
from dithc.sample.generate import Images
from dithc.sample.shards import Shards, as_stored

LATENTS_AT_ONCE = 6  # at least, as large as all latents of a scene; measured were 10 to 13
SPARE_BYTES = 64 << 20  # for what stands beside the arrays
LINES = 64  # of an image, turned into what is stored at once
LOOKED_AT = 512  # pixels of a side of the picture of a scene


def check_memory(shape: tuple[int, int, int], *, free: int) -> None:
    """Raise UserError if latents (Z, h, w) of a scene, complete on every rank, exceed `free` bytes per rank."""
    latents = math.prod(shape) * torch.float32.itemsize
    if LATENTS_AT_ONCE * latents > free:
        raise problem(
            f"a scene of {shape[0]} x {shape[1]} x {shape[2]} latents is larger than memory",
            got=f"{refusal.gib(free)} free for a rank",
            expected=f"{refusal.gib(LATENTS_AT_ONCE * latents)} at least: a sampler has {LATENTS_AT_ONCE} tensors or more of "
            f"{refusal.gib(latents)} at once, on every rank",
            fix="lower `size` of the evaluation, take a codec of fewer latents (`pixel` has one for every number), "
            "start fewer ranks a node, or ask for more memory (`resources: {sample: {mem_mb}}`)",
        )


def check_room(shards: Shards, missing: Sequence[int], *, shape: tuple[int, int, int], free: int) -> None:
    """Raise UserError if the disk has less than the bytes of all missing scenes (C, H, W), one per shard."""
    pixels = shape[1] * shape[2]
    needed = len(missing) * pixels * (shape[0] * np.dtype(np.float16).itemsize + 3)
    if missing and needed + SPARE_BYTES > free:
        raise problem(
            f"{len(missing)} scene(s) of {shape[0]} x {shape[1]} x {shape[2]} are larger than the disk of {shards.folder}",
            got=f"{free / 1e9:.2f} GB free",
            expected=f"{(needed + SPARE_BYTES) / 1e9:.2f} GB: fp16, and the display as bytes",
            fix="free space, choose another place, or lower `size` or `images` of the evaluation",
        )


def free_bytes(folder: Path) -> int:
    """What the disk of a folder has left, which need not be there yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def write_scene(shards: Shards, shard: int, images: Images, latent: Tensor, *, begun: float) -> None:
    """Decode a scene's latent (Z, h, w), which every rank of the team has; the first rank writes the shard.

    `begun` is the start by `time.monotonic`. Raises UserError if the scene is not finite or the disk is full.
    """
    seams = round(images.seams(latent[None]), 4)
    if images.team.members.rank > 0:
        for _ in images.rows(latent):
            pass
        return
    side = latent.shape[-1] * images.codec.factor
    try:
        shards.sidecar(shard).unlink(missing_ok=True)
        with ExitStack() as stack:
            targets: list[_Rows] = []
            bands = 0
            for rows in _lines(images.rows(latent)):  # (C, rows, W)
                image = rows.numpy()[None]
                shards.check(shard, image)
                bands = image.shape[1]
                if not targets:
                    paths = shards.path(shard), shards.path(shard, kind="rgb")
                    shapes = (bands, side, side), (3, side, side)
                    kinds = (np.float16, np.uint8)
                    targets = [stack.enter_context(_rows_of(*each)) for each in zip(paths, shapes, kinds, strict=True)]
                targets[0].append(as_stored(image[0]))
                targets[1].append(images.codec.to_rgb(rows[None])[0])
        shape, labels = (bands, side, side), images.labels(shards.indices(shard))
        seconds = (time.monotonic() - begun) * images.team.members.size
        shards.say(shard, shape=shape, labels=labels, seconds=seconds, seam_ratio=seams)
    except OSError as error:
        raise shards.unwritten(shard, error) from error


def _lines(parts: Iterator[Tensor]) -> Iterator[Tensor]:
    """Fewer rows at once: what is made of them is several times as large for a while."""
    for part in parts:
        yield from torch.split(part, LINES, dim=1)


class _Rows:
    """An array (1, C, H, W) in a file, written some rows at a time."""

    def __init__(self, file: IO[bytes], shape: tuple[int, int, int], dtype: Any) -> None:
        self._file, self._shape, self._dtype, self._done = file, shape, np.dtype(dtype), 0
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (1, *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        self._start = file.tell()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Writes the next rows (C, rows, W)."""
        _, height, width = self._shape
        for band, part in enumerate(rows):
            self._file.seek(self._start + (band * height + self._done) * width * self._dtype.itemsize)
            self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self._done += rows.shape[1]


@contextmanager
def _rows_of(path: Path, shape: tuple[int, int, int], dtype: Any) -> Iterator[_Rows]:
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield _Rows(file, shape, dtype)


def picture(shards: Shards) -> npt.NDArray[np.uint8]:
    """The display of the first scene (1, 3, h, w), thinned to at most `LOOKED_AT` pixels a side."""
    rgb = np.load(shards.path(0, kind="rgb"), mmap_mode="r")
    every = -(-rgb.shape[-1] // LOOKED_AT)
    return np.array(rgb[..., ::every, ::every])
