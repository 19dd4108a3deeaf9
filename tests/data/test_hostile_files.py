"""Hostile files: a bad file is a row with its reason, and other files of the machine stay untouched."""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.raster.jpeg2000_check import EOC, HOLE_BYTES, check_codestream
from dithc.data.readers import read_scenes
from dithc.data.scene import Reason, Rejection, Scene, SceneRejectedError
from tests.data.readers.scene_readers import reader

BANDS = ["B02", "B03", "B04", "B08"]
END_MARKER = EOC.to_bytes(2)
GRID: dict[str, Any] = {"transform": (10.0, 0.0, 300000.0, 0.0, -10.0, 4600020.0), "epsg": 32632}


read_all, _, refusal = reader(
    datasets.Sentinel2ArraySource, kind="sentinel2-array", bands=BANDS, units="dn", offset=0.0
)


def read(folder: Path) -> dict[str, Scene | SceneRejectedError]:
    found = read_all(folder)
    return {scene.scene_id: scene.error if isinstance(scene, Rejection) else scene for scene in found}


def write(path: Path, pixels: np.ndarray, **options: Any) -> None:
    driver = "JP2OpenJPEG" if path.suffix == ".jp2" else "GTiff"
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(*GRID["transform"])}
    shape = dict(zip(("count", "height", "width"), pixels.shape, strict=True))
    with rasterio.open(path, "w", driver=driver, dtype=pixels.dtype, **shape, **place, **options) as target:
        target.write(pixels)


@pytest.fixture
def land() -> np.ndarray:
    draws = np.random.default_rng(0)
    return (np.array([400, 600, 350, 2500])[:, None, None] * draws.uniform(0.5, 1.5, (4, 160, 144))).astype(np.uint16)


@pytest.fixture
def tiled_jp2(tmp_path: Path, land: np.ndarray) -> Path:
    """Create a JPEG 2000 file of several tiles."""
    path = tmp_path / "tiled.jp2"
    options = {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO", "BLOCKXSIZE": 64, "BLOCKYSIZE": 64}
    write(path, land, **options)
    np.testing.assert_array_equal(read_raster(path)[0], land)
    return path


TAILS: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, at: content[:at],
    "ended": lambda content, at: content[:at] + END_MARKER,
    "zeros": lambda content, at: content[:at] + bytes(len(content) - at),
    "zeros-ended": lambda content, at: content[:at] + bytes(len(content) - at - 2) + END_MARKER,
}


@pytest.mark.parametrize("tail", TAILS)
def test_truncated_jpeg_2000_is_rejected_at_any_length(
    tiled_jp2: Path, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDAL_NUM_THREADS", "ALL_CPUS")
    content = tiled_jp2.read_bytes()
    for offset in np.linspace(1, len(content) - HOLE_BYTES - 2, 60).astype(int).tolist():
        tiled_jp2.write_bytes(TAILS[tail](content, offset))
        with pytest.raises(OSError):
            read_raster(tiled_jp2)


def test_page_of_zeros_in_jpeg_2000_is_rejected_at_any_offset(tiled_jp2: Path) -> None:
    content = tiled_jp2.read_bytes()
    first = content.index(b"\xff\x90")
    for offset in np.linspace(first, len(content) - HOLE_BYTES, 30).astype(int).tolist():
        tiled_jp2.write_bytes(content[:offset] + bytes(HOLE_BYTES) + content[offset + HOLE_BYTES :])
        with pytest.raises(OSError, match=r"hole|damaged|truncated"):
            read_raster(tiled_jp2)


@pytest.mark.parametrize("precinct", [16, 256])
def test_empty_packets_of_jpeg_2000_are_not_reported_as_holes(tmp_path: Path, precinct: int) -> None:
    """Image parts at mid-range are not coded. OpenJPEG writes 0x80 per precinct, other encoders 0x00."""
    path = tmp_path / "empty.jp2"
    options = {"QUALITY": "100", "REVERSIBLE": "YES", "BLOCKXSIZE": 1280, "BLOCKYSIZE": 1280, "RESOLUTIONS": 1}
    options |= {"CODEBLOCK_WIDTH": 16, "CODEBLOCK_HEIGHT": 16, "PRECINCTS": f"{{{precinct},{precinct}}}"}
    write(path, np.full((1, 1280, 1280), 32768, np.uint16), **options)
    content = path.read_bytes()
    data = content.index(b"\xff\x93") + 2
    path.write_bytes(content[:data] + content[data:].replace(b"\x80", b"\0"))
    assert (bytes(HOLE_BYTES) in path.read_bytes()) == (precinct == 16)
    assert (read_raster(path)[0] == 32768).all()


@pytest.mark.parametrize("compress", ["none", "lzw", "deflate", "zstd"])
def test_truncated_tiled_geotiff_is_rejected_at_any_length(
    tmp_path: Path, land: np.ndarray, compress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDAL_NUM_THREADS", "ALL_CPUS")
    path = tmp_path / "tiled.tif"
    write(path, land, tiled=True, blockxsize=64, blockysize=64, compress=compress)
    content = path.read_bytes()
    for offset in np.linspace(1, len(content) - 1, 40).astype(int).tolist():
        path.write_bytes(content[:offset])
        with pytest.raises(OSError):
            read_raster(path)


@pytest.mark.parametrize("cut", [False, True])
def test_jpeg_2000_without_a_tile_is_rejected(tiled_jp2: Path, cut: bool) -> None:
    check_codestream(tiled_jp2)
    content = tiled_jp2.read_bytes()
    raw = content[content.index(b"jp2c") + 4 :]  # the plain codestream, as in .j2k files
    first = raw.index(b"\xff\x90")
    (length,) = struct.unpack(">I", raw[first + 6 : first + 10])
    tiled_jp2.write_bytes(raw[:first] + raw[first + length :] if cut else raw)
    if cut:
        with pytest.raises(OSError, match="lacks parts of tiles"):
            check_codestream(tiled_jp2)
    else:
        check_codestream(tiled_jp2)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint32", 4294967295),
        ("int64", 2**32 + 3000),
        ("uint64", 2**64 - 1),
        ("int32", -(2**31)),
        ("uint32", 2**31 - 500),
    ],
)
def test_overflowing_integers_are_rejected_instead_of_wrapped(
    tmp_path: Path, land: np.ndarray, kind: str, value: int
) -> None:
    wide = land.astype(kind)
    np.save(tmp_path / "scene.npy", wide)
    (scene,) = read(tmp_path).values()
    np.testing.assert_array_equal(scene.pixels, land)
    wide[0, 0, 0] = value
    np.save(tmp_path / "scene.npy", wide)
    for offset in (0.0, -1000.0, 10.0**6):
        assert refusal(tmp_path, offset=offset, check_offset=False).reason == Reason.OVERFLOW


@pytest.mark.parametrize("shape", ["(4, 1000000000000)", "(-4, 160, 144)", "(4, 160, 143)", "(4, 160, 145)", "(0,)"])
def test_array_with_wrong_shape_in_the_header_is_rejected(tmp_path: Path, land: np.ndarray, shape: str) -> None:
    np.save(tmp_path / "scene.npy", land)
    content = (tmp_path / "scene.npy").read_bytes()
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (tmp_path / "scene.npy").write_bytes(content[:10] + header.ljust(117) + b"\n" + content[128:])
    assert refusal(tmp_path).reason == Reason.READ_ERROR


@pytest.mark.parametrize("header", [b"{", b"[" * 200, b"'a", b"{'descr': 1}", b"\xff"])
def test_array_with_malformed_header_is_rejected(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "scene.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    assert refusal(tmp_path).reason == Reason.READ_ERROR


def test_huge_rasters_are_rejected_from_the_header(tmp_path: Path, tiled_jp2: Path) -> None:
    sparse = {"count": 4, "height": 200_000, "width": 200_000, "dtype": "uint16", "SPARSE_OK": "YES", "BIGTIFF": "YES"}
    blocks = {"tiled": True, "blockxsize": 8192, "blockysize": 8192}
    rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", crs="EPSG:32632", **sparse, **blocks).close()
    content = bytearray(tiled_jp2.read_bytes())
    for place in (content.index(b"\xff\x51") + 6, content.index(b"\xff\x51") + 22, content.index(b"ihdr") + 4):
        struct.pack_into(">II", content, place, 400_000, 400_000)
    tiled_jp2.write_bytes(content)
    found = read(tmp_path)
    assert {one.reason for one in found.values()} == {Reason.READ_ERROR}
    assert "GiB" in found["a.tif"].got


def test_special_files_and_non_utf8_names_are_rejected_scenes(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "good.npy", land)
    (tmp_path / "a.npy").symlink_to("nowhere")
    (tmp_path / "b.tif").symlink_to("b.tif")
    (tmp_path / "c.tif").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "d.jp2")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/e\xff.npy")).write_bytes((tmp_path / "good.npy").read_bytes())
    (tmp_path / "linked.npy").symlink_to("good.npy")
    found = read(tmp_path)
    assert [name for name, one in found.items() if isinstance(one, Scene)] == ["good.npy", "linked.npy"]
    rejected = {name: one.got for name, one in found.items() if isinstance(one, SceneRejectedError)}
    assert rejected.keys() == {"a.npy", "b.tif", "c.tif", "d.jp2", "e\\udcff.npy"}
    assert "nowhere" in rejected["a.npy"]
    assert "device" in rejected["c.tif"]
    assert "pipe" in rejected["d.jp2"]


@pytest.mark.parametrize("side", [float("nan"), float("inf"), 0.0, 1e300])
def test_invalid_pixel_sizes_are_rejected(tmp_path: Path, land: np.ndarray, side: float) -> None:
    write_geotiff(tmp_path / "scene.tif", land, **GRID)
    content, good = (tmp_path / "scene.tif").read_bytes(), struct.pack("<3d", 10.0, 10.0, 0.0)
    assert good in content
    (tmp_path / "scene.tif").write_bytes(content.replace(good, struct.pack("<3d", side, side, 0.0)))
    source = datasets.Gaofen2Source(kind="gaofen2", path=str(tmp_path))
    for found in (*read_scenes(source, tmp_path), *read_all(tmp_path)):
        assert found.error.reason in (Reason.GRID_MISMATCH, Reason.CRS_MISSING)


def test_raster_documents_and_sidecars_open_no_network_connection(tmp_path: Path, land: np.ndarray) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        wmts = f"<GDAL_WMTS><GetCapabilitiesUrl>{address}</GetCapabilitiesUrl></GDAL_WMTS>"
        band = f"<SimpleSource><SourceFilename>/vsicurl/{address}</SourceFilename></SimpleSource>"
        vrt = f'<VRTRasterBand dataType="UInt16" band="1">{band}</VRTRasterBand>'
        documents = {"a1": wmts, "a2": f"<WCS_GDAL><ServiceURL>{address}</ServiceURL></WCS_GDAL>"}
        documents |= {"a3": f'<GDAL_WMS><Service name="WMS"><ServerUrl>{address}</ServerUrl></Service></GDAL_WMS>'}
        documents |= {"a4": f'<VRTDataset rasterXSize="9" rasterYSize="9">{vrt}</VRTDataset>'}
        for name, document in documents.items():
            (tmp_path / f"{name}.tiff").write_text(document)
        write_geotiff(tmp_path / "c.tif", land, **GRID)
        (tmp_path / "c.tif.ovr").write_text(wmts)
        overviews = f'<Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">{address}</MDI></Metadata>'
        (tmp_path / "c.tif.aux.xml").write_text(f"<PAMDataset>{overviews}</PAMDataset>")
        write_geotiff(tmp_path / "d.tif", land, **GRID)
        with rasterio.open(tmp_path / "d.tif", "r+") as raster:
            raster.update_tags(ns="OVERVIEWS", OVERVIEW_FILE=address)
        write_geotiff(tmp_path / "e.tif", land, **GRID)
        (tmp_path / "e.tif.msk").write_text(wmts)
        found = read(tmp_path)
        assert [name for name, one in found.items() if isinstance(one, Scene)] == ["c.tif", "d.tif"]
        assert len(found) == len(documents) + 3
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("element", ["SRS", "GeoTransform", "NoDataValue"])
def test_sidecar_with_grid_or_nodata_is_rejected_and_statistics_accepted(
    tmp_path: Path, land: np.ndarray, element: str
) -> None:
    path = tmp_path / "scene.tif"
    write_geotiff(path, land, **GRID)
    sidecar = tmp_path / "scene.tif.aux.xml"
    sidecar.write_text("<PAMDataset><Metadata><MDI key='STATISTICS_MEAN'>1</MDI></Metadata></PAMDataset>")
    np.testing.assert_array_equal(read_raster(path)[0], land)
    sidecar.write_text(f"<PAMDataset><{element}>1</{element}></PAMDataset>")
    with pytest.raises(UserError, match=r"aux\.xml"):
        read_raster(path)
    sidecar.unlink()
    sidecar.symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"aux\.xml"):
        read_raster(path)
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in (path.name, sidecar.name):
        (linked / name).symlink_to(tmp_path / name)
    sidecar.unlink()
    sidecar.write_text("<PAMDataset/>")
    np.testing.assert_array_equal(read_raster(linked / path.name)[0], land)
