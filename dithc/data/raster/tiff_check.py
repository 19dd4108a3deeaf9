"""Completeness check of deflated TIFF blocks, including their checksums.

Decoders stop when they have the pixels of a block, before its checksum, so that altered bytes become wrong pixels
without an error. Tags and types follow TIFF 6.0, sections 2 and 8, and BigTIFF. A block is a zlib stream (RFC 1950),
which ends with the Adler-32 of its content. Other compressions, and uncompressed data, have no checksum, so that
alterations cannot be detected.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import BinaryIO

from dithc.data.raster.jpeg2000_check import read_struct

COMPRESSION, DEFLATE = 259, ((8,), (32946,))
SUBFILE, REDUCED, MASK = 254, 1, 4
TILE_SIDES, MAX_DIRECTORIES = (322, 323), 64
OFFSETS, LENGTHS = (273, 324), (279, 325)
"""Tags of strips and of tiles."""
TYPES = {3: ("H", 2), 4: ("I", 4), 13: ("I", 4), 16: ("Q", 8), 18: ("Q", 8)}
CHUNK_BYTES = 1 << 20


def check_blocks(path: Path, *, block_bytes: int) -> None:
    """Decompress every block of the first image and its mask, and compare the checksums; OSError if larger than stated."""
    with path.open("rb") as file:
        try:
            blocks = list(_find_blocks(file, size=path.stat().st_size, max_bytes=block_bytes))
        except struct.error as error:
            raise OSError("the TIFF file is truncated: it ends within its directory") from error
        for number, (offset, length) in enumerate(blocks):
            if length:  # a missing block has no data
                _check_block(file, offset, length, name=f"block {number} of {len(blocks)}", max_bytes=block_bytes)


def _check_block(file: BinaryIO, offset: int, length: int, *, name: str, max_bytes: int) -> None:
    file.seek(offset)
    packed, stream, total = file.read(length), zlib.decompressobj(), 0
    try:
        while not stream.eof and total <= max_bytes:
            part = stream.decompress(packed, CHUNK_BYTES)
            packed = stream.unconsumed_tail
            if not part and not packed:
                break
            total += len(part)
    except zlib.error as error:
        raise OSError(f"{name} of the TIFF file is damaged: {error}") from error
    if not stream.eof:
        raise OSError(f"{name} of the TIFF file is truncated or damaged: it does not end after {total} bytes of pixels")


def _find_blocks(file: BinaryIO, *, size: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each deflated block of the first image and of its mask."""
    order = "<" if file.read(2) == b"II" else ">"
    is_big = read_struct(file, 2, f"{order}H") == (43,)
    pointer = f"{order}Q" if is_big else f"{order}I"
    (offset,) = read_struct(file, 8 if is_big else 4, pointer)
    for number in range(MAX_DIRECTORIES):
        (count,) = read_struct(file, offset, f"{order}Q" if is_big else f"{order}H")
        start, step = (offset + 8, 20) if is_big else (offset + 2, 12)
        entries = {}
        for entry in range(count):
            tag, kind, length = read_struct(file, start + entry * step, f"{order}HHQ" if is_big else f"{order}HHI")
            entries[tag] = kind, length, start + entry * step + (12 if is_big else 8)

        def values(tag: int, entries: dict[int, tuple[int, int, int]] = entries) -> tuple[int, ...]:
            kind, length, offset = entries.get(tag, (0, 0, 0))
            if kind not in TYPES:
                return ()
            letter, width = TYPES[kind]
            if width * length > (8 if is_big else 4):
                (offset,) = read_struct(file, offset, pointer)
            return read_struct(file, offset, f"{order}{min(length, size)}{letter}")

        is_mask = sum(values(SUBFILE)) & (MASK | REDUCED) == MASK
        if is_mask and prod(sum(values(tag)) for tag in TILE_SIDES) > max_bytes:
            raise OSError("the mask of the TIFF file has tiles that are larger than its image")
        if (number == 0 or is_mask) and values(COMPRESSION) in DEFLATE:
            for offsets, lengths in zip(OFFSETS, LENGTHS, strict=True):
                yield from zip(values(offsets), values(lengths), strict=False)
        (offset,) = read_struct(file, start + count * step, pointer)
        if not offset:
            return
