"""Completeness check of JPEG 2000 files: tile parts, end marker, and pages of zeros instead of data.

Decoders are lenient. Missing parts of a tile become wrong pixels, in some builds and settings without an error. Marker
codes, segments and boxes follow ISO/IEC 15444-1, annexes A and I. The image is not decoded, and the format has no
checksum. Single altered bytes of image data are therefore only detected by a checksum of the entire file.
"""

import struct
from collections import Counter
from pathlib import Path
from typing import BinaryIO

SOC, SIZ, COD, SOT, EOC = 0xFF4F, 0xFF51, 0xFF52, 0xFF90, 0xFFD9
MAX_BOXES, MAX_SEGMENTS, MAX_PARTS = 1000, 100_000, 1 << 20
"""Limits far above real files, so that files of empty elements cannot occupy the reader."""
HOLE_BYTES, CHUNK_BYTES = 4096, 1 << 22
"""A page of zeros, as left by a preallocated download or a failing disk. Coded data has no run of this length, because
the coder adapts to zeros within a few bytes. Empty packets are an exception, with one zero byte each.
"""


def check_codestream(path: Path) -> None:
    """Follow the tile parts of the codestream to the end marker, and read it once for holes; OSError for any fault."""
    with path.open("rb") as file:
        try:
            start, end = _find_codestream(file, size=path.stat().st_size)
            num_tiles, num_packets, first = _read_main_header(file, start)
            _check_tile_parts(file, first, end, num_tiles=num_tiles)
            _check_holes(file, first, end, allowed_zeros=max(HOLE_BYTES - 1, num_packets))
        except struct.error as error:
            raise OSError("the JPEG 2000 file is truncated: it ends within a header") from error


def read_struct(file: BinaryIO, offset: int, form: str) -> tuple[int, ...]:
    file.seek(offset)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _find_codestream(file: BinaryIO, *, size: int) -> tuple[int, int]:
    """Return start and end of the codestream: the box `jp2c`, or the entire file without boxes."""
    if read_struct(file, 0, ">H")[0] == SOC:
        return 0, size
    offset = 0
    for _ in range(MAX_BOXES):
        length, kind = read_struct(file, offset, ">II")
        header = 8
        if length == 1:  # an 8-byte length follows
            (length,), header = read_struct(file, offset + 8, ">Q"), 16
        end = size if length == 0 else offset + length
        if end > size:
            raise OSError(f"the JPEG 2000 file is truncated: a box ends at byte {end}, the file at {size}")
        if kind == int.from_bytes(b"jp2c"):
            return offset + header, end
        if end < offset + header:
            break
        offset = end
    raise OSError("the JPEG 2000 file has no codestream among its boxes")


def _read_main_header(file: BinaryIO, start: int) -> tuple[int, int, int]:
    """Return the number of tiles, the most packets of a tile, and the offset of the first tile part."""
    fields = read_struct(file, start, ">HHHHIIIIIIIIH")
    marker, size, _, _, right, bottom, _, _, width, height, left, top, components = fields
    if (marker, size) != (SOC, SIZ) or not width or not height:
        raise OSError("the JPEG 2000 codestream does not start with its size")
    tile = min(width, right - left), min(height, bottom - top)
    offset, num_packets = start + 2, 0
    for _ in range(MAX_SEGMENTS):
        marker, length = read_struct(file, offset, ">HH")
        if marker == SOT:
            return -(-(right - left) // width) * -(-(bottom - top) // height), num_packets, offset
        if marker == COD:
            num_packets = components * _count_packets(file, offset + 4, tile)
        offset += 2 + length
    raise OSError("the JPEG 2000 codestream has no tiles")


def _count_packets(file: BinaryIO, offset: int, tile: tuple[int, int]) -> int:
    """Return the most packets of a tile component: one per layer, resolution and precinct (A.6.1, B.6)."""
    style, _, layers, _, levels = read_struct(file, offset, ">BBHBB")
    sizes = read_struct(file, offset + 10, f">{levels + 1}B") if style & 1 else (0xFF,) * (levels + 1)
    count = 0
    for level, size in enumerate(sizes):
        scale = levels - level
        wide, high = (
            (side >> scale >> power) + 2 for side, power in zip(tile, (size & 15, size >> 4), strict=True)
        )  # plus a partial precinct at either end
        count += wide * high
    return layers * count


def _check_tile_parts(file: BinaryIO, offset: int, end: int, *, num_tiles: int) -> None:
    parts: Counter[int] = Counter()
    declared: dict[int, int] = {}
    for _ in range(MAX_PARTS):
        if offset + 2 == end and read_struct(file, offset, ">H")[0] == EOC:
            break
        marker, _, tile, length, _, count = read_struct(file, offset, ">HHHIBB")
        if marker != SOT:
            raise OSError(f"the JPEG 2000 codestream is truncated or damaged: no tile part at byte {offset}")
        offset = offset + length if length else end - 2  # 0: the last part, up to the end marker
        parts[tile] += 1
        declared[tile] = max(count, declared.get(tile, 0))
        if offset + 2 > end:
            raise OSError(
                f"the JPEG 2000 codestream is truncated: a part of tile {tile} ends at byte {offset} of {end - 2}"
            )
        if length and length < 12:
            raise OSError(f"the JPEG 2000 codestream is damaged: a part of tile {tile} has {length} bytes")
    else:
        raise OSError("the JPEG 2000 codestream does not end with its end marker")
    incomplete = [tile for tile, count in declared.items() if parts[tile] < count]
    if incomplete or len(parts) != num_tiles:
        raise OSError(
            f"the JPEG 2000 codestream lacks parts of tiles: {len(parts) - len(incomplete)} of {num_tiles} are complete"
        )


def _check_holes(file: BinaryIO, offset: int, end: int, *, allowed_zeros: int) -> None:
    """Raise OSError for a run of more than `allowed_zeros` zero bytes between two offsets."""
    hole, tail = bytes(allowed_zeros + 1), b""
    file.seek(offset)
    while offset < end and (chunk := file.read(min(CHUNK_BYTES, end - offset))):
        index = (tail + chunk).find(hole)
        if index >= 0:
            pos = offset - len(tail) + index
            raise OSError(f"the JPEG 2000 codestream has a hole: at least {len(hole)} bytes of zero from byte {pos}")
        offset += len(chunk)
        tail = (tail + chunk)[-allowed_zeros:]
