"""Deflated blocks of TIFF files: an altered byte in any block is an error, for every file layout."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dithc.data.raster import read_raster
from dithc.data.raster.tiff_check import check_blocks

SHAPE = (3, 90, 70)
LAYOUTS: dict[str, dict[str, Any]] = {
    "strips": {},
    "tiles": {"tiled": True, "blockxsize": 32, "blockysize": 16},
    "BigTIFF": {"BIGTIFF": "YES", "tiled": True, "blockxsize": 32, "blockysize": 16},
    "big endian": {"ENDIANNESS": "BIG"},
    "bands apart": {"interleave": "band"},
    "BigTIFF, big endian, one strip": {"BIGTIFF": "YES", "ENDIANNESS": "BIG", "blockysize": 90},
    "with overviews": {"tiled": True, "blockxsize": 16, "blockysize": 16, "predictor": 2},
}


def write_raster(path: Path, *, compress: str = "deflate", **options: Any) -> np.ndarray[Any, Any]:
    pixels = np.random.default_rng(0).integers(0, 900, SHAPE, dtype=np.uint16)
    shape = {"count": 3, "height": 90, "width": 70, "dtype": "uint16", "crs": "EPSG:32632"}
    grid = {"transform": rasterio.Affine(10, 0, 3e5, 0, -10, 4e6)}
    with rasterio.open(path, "w", driver="GTiff", compress=compress, **shape, **grid, **options) as target:
        target.write(pixels)
    return pixels


def find_zlib_streams(content: bytes) -> list[tuple[int, int]]:
    """Find zlib streams in a file by trying every byte, independently of its directory."""
    found, pos = list[tuple[int, int]](), 0
    while pos < len(content):
        stream = zlib.decompressobj()
        try:
            unfolded = stream.decompress(content[pos:]) if content[pos] == 0x78 else b""
        except zlib.error:
            unfolded = b""
        length = len(content) - pos - len(stream.unused_data) if stream.eof and len(unfolded) > 100 else 0
        found += [(pos, length)] if length else []
        pos += length or 1
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_altered_bit_of_a_block_is_detected_in_every_layout(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "x.tif"
    pixels = write_raster(path, **LAYOUTS[layout])
    if layout == "with overviews":
        with rasterio.open(path, "r+") as raster:
            raster.build_overviews([2, 4])
    np.testing.assert_array_equal(read_raster(path)[0], pixels)
    intact = path.read_bytes()
    blocks = find_zlib_streams(intact)
    assert len(blocks) >= (1 if "one strip" in layout else 3)
    draws = np.random.default_rng(1)
    detected = 0
    for _ in range(40):
        start, length = blocks[draws.integers(len(blocks))]
        pos = start + int(draws.integers(length))
        path.write_bytes(intact[:pos] + bytes([intact[pos] ^ 1 << int(draws.integers(8))]) + intact[pos + 1 :])
        try:
            found = read_raster(path)[0]
        except OSError:
            detected += 1
        else:  # an overview, which is not read
            np.testing.assert_array_equal(found, pixels)
            assert layout == "with overviews"
    assert detected >= 20


def test_altered_block_accepted_by_gdal_is_rejected(tmp_path: Path) -> None:
    """The check is necessary because the decoder ignores the checksum after the last pixel."""
    path = tmp_path / "x.tif"
    pixels = write_raster(path, blockysize=90)
    intact = path.read_bytes()
    ((start, length),) = find_zlib_streams(intact)
    undetected = 0
    for pos in range(start + length // 4, start + length // 4 + 30):
        path.write_bytes(intact[:pos] + bytes([intact[pos] ^ 4]) + intact[pos + 1 :])
        try:
            with rasterio.open(path) as raster:
                undetected += not np.array_equal(raster.read(), pixels)
        except rasterio.errors.RasterioError:
            continue
        with pytest.raises(OSError, match="block 0 of 1"):
            read_raster(path)
    assert undetected


def test_missing_sparse_blocks_are_read_as_zero(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    shape = {"count": 1, "height": 64, "width": 64, "dtype": "uint16", "SPARSE_OK": "YES"}
    tiles = {"tiled": True, "blockxsize": 16, "blockysize": 16}
    with rasterio.open(path, "w", driver="GTiff", compress="deflate", **shape, **tiles) as target:
        target.write(np.full((1, 16, 16), 7, np.uint16), window=rasterio.windows.Window(0, 0, 16, 16))
    pixels, _ = read_raster(path)
    assert pixels.sum() == 7 * 256


@pytest.mark.parametrize("compress", ["none", "lzw", "packbits"])
def test_block_check_accepts_compressions_without_checksums(tmp_path: Path, compress: str) -> None:
    pixels = write_raster(tmp_path / "x.tif", compress=compress)
    check_blocks(tmp_path / "x.tif", block_bytes=1)
    np.testing.assert_array_equal(read_raster(tmp_path / "x.tif")[0], pixels)


def test_decompression_bomb_in_a_block_raises_an_error_early(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    write_raster(path, blockysize=90)
    intact = path.read_bytes()
    ((start, length),) = find_zlib_streams(intact)
    bomb = zlib.compress(bytes(length * 900), 9)
    assert len(bomb) <= length
    path.write_bytes(intact[:start] + bomb + intact[start + len(bomb) :])
    with pytest.raises(OSError, match=r"does not end after \d{5,7} bytes"):
        read_raster(path)
