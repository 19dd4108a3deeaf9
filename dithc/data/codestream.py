"""Whether a JPEG 2000 file is whole: every tile part where the header before it says, none missing, the end at the end.

Decoders are lenient: what is missing of a tile becomes wrong pixels, in some builds and settings without an error. Marker
codes, segments and boxes are those of ISO/IEC 15444-1, annexes A and I; nothing of the image is decoded here.
"""

import struct
from collections import Counter
from pathlib import Path
from typing import BinaryIO

SOC, SIZ, SOT, EOC = 0xFF4F, 0xFF51, 0xFF90, 0xFFD9
MOST_BOXES, MOST_SEGMENTS, MOST_PARTS = 1000, 100_000, 1 << 20
"""Far above what encoders write; a file made of empty ones must not keep the reader busy."""


def check_codestream(path: Path) -> None:
    """Follows the tile parts of the file's codestream from the first to the end marker; costs a small read for each.

    Raises:
        OSError: one is missing, longer than the file, or the end marker is not behind the last.
    """
    with path.open("rb") as file:
        try:
            start, end = _codestream(file, size=path.stat().st_size)
            num_tiles, first = _main_header(file, start)
            _tile_parts(file, first, end, num_tiles=num_tiles)
        except struct.error as error:
            raise OSError("the JPEG 2000 file is cut short: it ends within a header") from error


def _read(file: BinaryIO, place: int, form: str) -> tuple[int, ...]:
    file.seek(place)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _codestream(file: BinaryIO, *, size: int) -> tuple[int, int]:
    """First byte of the codestream and the byte behind it: the box `jp2c`, or the file where it has no boxes."""
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
            raise OSError(f"the JPEG 2000 file is cut short: a box ends at byte {end}, the file at {size}")
        if kind == int.from_bytes(b"jp2c"):
            return place + header, end
        if end < place + header:
            break
        place = end
    raise OSError("the JPEG 2000 file has no codestream among its boxes")


def _main_header(file: BinaryIO, start: int) -> tuple[int, int]:
    """Number of tiles, and where the first tile part begins."""
    marker, size, _, _, right, bottom, _, _, width, height, left, top = _read(file, start, ">HHHHIIIIIIII")
    if (marker, size) != (SOC, SIZ) or not width or not height:
        raise OSError("the JPEG 2000 codestream does not begin with its size")
    place = start + 2
    for _ in range(MOST_SEGMENTS):
        marker, length = _read(file, place, ">HH")
        if marker == SOT:
            return -(-(right - left) // width) * -(-(bottom - top) // height), place
        place += 2 + length
    raise OSError("the JPEG 2000 codestream has no tiles")


def _tile_parts(file: BinaryIO, place: int, end: int, *, num_tiles: int) -> None:
    parts: Counter[int] = Counter()
    promised: dict[int, int] = {}
    for _ in range(MOST_PARTS):
        if place + 2 == end and _read(file, place, ">H")[0] == EOC:
            break
        marker, _, tile, length, _, count = _read(file, place, ">HHHIBB")
        if marker != SOT:
            raise OSError(f"the JPEG 2000 codestream is cut short or damaged: no tile part at byte {place}")
        place = place + length if length else end - 2  # 0: the last one, up to the end marker
        parts[tile] += 1
        promised[tile] = max(count, promised.get(tile, 0))
        if place + 2 > end:
            raise OSError(
                f"the JPEG 2000 codestream is cut short: a part of tile {tile} ends at byte {place} of {end - 2}"
            )
        if length and length < 12:
            raise OSError(f"the JPEG 2000 codestream is damaged: a part of tile {tile} has {length} bytes")
    else:
        raise OSError("the JPEG 2000 codestream does not end with its end marker")
    lacking = [tile for tile, count in promised.items() if parts[tile] < count]
    if lacking or len(parts) != num_tiles:
        raise OSError(
            f"the JPEG 2000 codestream lacks parts of tiles: {len(parts) - len(lacking)} of {num_tiles} are whole"
        )
