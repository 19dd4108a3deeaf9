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
MOST_BOXES, MOST_SEGMENTS, MOST_PARTS = 1000, 100_000, 1 << 20
"""Limits far above real files, so that files of empty elements cannot occupy the reader."""
HOLE_BYTES, CHUNK_BYTES = 4096, 1 << 22
"""A page of zeros, as left by a preallocated download or a failing disk. Coded data has no run of this length, because
the coder adapts to zeros within a few bytes. Empty packets are an exception, with one zero byte each.
"""


def check_codestream(path: Path) -> None:
    """Follow the tile parts of the codestream to the end marker, and read it once for holes; OSError for any fault."""
    with path.open("rb") as file:
        try:
            start, end = _codestream(file, size=path.stat().st_size)
            num_tiles, num_packets, first = _main_header(file, start)
            _tile_parts(file, first, end, num_tiles=num_tiles)
            _no_hole(file, first, end, longer_than=max(HOLE_BYTES - 1, num_packets))
        except struct.error as error:
            raise OSError("the JPEG 2000 file is truncated: it ends within a header") from error


def _read(file: BinaryIO, place: int, form: str) -> tuple[int, ...]:
    file.seek(place)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _codestream(file: BinaryIO, *, size: int) -> tuple[int, int]:
    """Return start and end of the codestream: the box `jp2c`, or the entire file without boxes."""
    if _read(file, 0, ">H")[0] == SOC:
        return 0, size
    place = 0
    for _ in range(MOST_BOXES):
        length, kind = _read(file, place, ">II")
        header = 8
        if length == 1:  # an 8-byte length follows
            (length,), header = _read(file, place + 8, ">Q"), 16
        end = size if length == 0 else place + length
        if end > size:
            raise OSError(f"the JPEG 2000 file is truncated: a box ends at byte {end}, the file at {size}")
        if kind == int.from_bytes(b"jp2c"):
            return place + header, end
        if end < place + header:
            break
        place = end
    raise OSError("the JPEG 2000 file has no codestream among its boxes")


def _main_header(file: BinaryIO, start: int) -> tuple[int, int, int]:
    """Return the number of tiles, the most packets of a tile, and the offset of the first tile part."""
    found = _read(file, start, ">HHHHIIIIIIIIH")
    marker, size, _, _, right, bottom, _, _, width, height, left, top, components = found
    if (marker, size) != (SOC, SIZ) or not width or not height:
        raise OSError("the JPEG 2000 codestream does not start with its size")
    tile = min(width, right - left), min(height, bottom - top)
    place, num_packets = start + 2, 0
    for _ in range(MOST_SEGMENTS):
        marker, length = _read(file, place, ">HH")
        if marker == SOT:
            return -(-(right - left) // width) * -(-(bottom - top) // height), num_packets, place
        if marker == COD:
            num_packets = components * _packets(file, place + 4, tile)
        place += 2 + length
    raise OSError("the JPEG 2000 codestream has no tiles")


def _packets(file: BinaryIO, place: int, tile: tuple[int, int]) -> int:
    """Return the most packets of a tile component: one per layer, resolution and precinct (A.6.1, B.6)."""
    style, _, layers, _, levels = _read(file, place, ">BBHBB")
    sizes = _read(file, place + 10, f">{levels + 1}B") if style & 1 else (0xFF,) * (levels + 1)
    count = 0
    for level, size in enumerate(sizes):
        scale = levels - level
        wide, high = (
            (side >> scale >> power) + 2 for side, power in zip(tile, (size & 15, size >> 4), strict=True)
        )  # plus a partial precinct at either end
        count += wide * high
    return layers * count


def _tile_parts(file: BinaryIO, place: int, end: int, *, num_tiles: int) -> None:
    parts: Counter[int] = Counter()
    promised: dict[int, int] = {}
    for _ in range(MOST_PARTS):
        if place + 2 == end and _read(file, place, ">H")[0] == EOC:
            break
        marker, _, tile, length, _, count = _read(file, place, ">HHHIBB")
        if marker != SOT:
            raise OSError(f"the JPEG 2000 codestream is truncated or damaged: no tile part at byte {place}")
        place = place + length if length else end - 2  # 0: the last part, up to the end marker
        parts[tile] += 1
        promised[tile] = max(count, promised.get(tile, 0))
        if place + 2 > end:
            raise OSError(
                f"the JPEG 2000 codestream is truncated: a part of tile {tile} ends at byte {place} of {end - 2}"
            )
        if length and length < 12:
            raise OSError(f"the JPEG 2000 codestream is damaged: a part of tile {tile} has {length} bytes")
    else:
        raise OSError("the JPEG 2000 codestream does not end with its end marker")
    lacking = [tile for tile, count in promised.items() if parts[tile] < count]
    if lacking or len(parts) != num_tiles:
        raise OSError(
            f"the JPEG 2000 codestream lacks parts of tiles: {len(parts) - len(lacking)} of {num_tiles} are complete"
        )


def _no_hole(file: BinaryIO, place: int, end: int, *, longer_than: int) -> None:
    """Raise OSError for a run of more than `longer_than` zero bytes between two offsets."""
    hole, kept = bytes(longer_than + 1), b""
    file.seek(place)
    while place < end and (chunk := file.read(min(CHUNK_BYTES, end - place))):
        found = (kept + chunk).find(hole)
        if found >= 0:
            at = place - len(kept) + found
            raise OSError(f"the JPEG 2000 codestream has a hole: at least {len(hole)} bytes of zero from byte {at}")
        place += len(chunk)
        kept = (kept + chunk)[-longer_than:]
