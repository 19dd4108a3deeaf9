"""Hostile data files and products from a seed; each generator damages a good input in a different way.

A generator receives random draws, the folder of good inputs and the folder to fill, and returns the settings for the
reader. Its output must be rejected with a reason, or read with exactly the pixels of the good input. Links and paths
out of it lead to pipes, so that opening them blocks forever. Addresses lead to a socket that counts connections.
"""

import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from PIL import Image

from dithc.data import synthesize
from dithc.data.raster import write_geotiff
from tests.inputs.gaofen2_raw import write_products
from tests.inputs.rasters import write_raster
from tests.inputs.safe_variants import VARIANTS, write_variant

BANDS = ["B02", "B03", "B04", "B08"]
GRID: dict[str, Any] = {"transform": (10.0, 0.0, 300000.0, 0.0, -10.0, 4600020.0), "epsg": 32632}
SAFE: dict[str, Any] = {"kind": "sentinel2"}
ARRAY: dict[str, Any] = {"kind": "sentinel2-array", "bands": BANDS, "units": "dn", "offset": 0.0}
PICTURES: dict[str, Any] = {"kind": "image-folder", "classes": "one", "size": 32}
NUMBERS = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e309",
    "0",
    "-10000",
    "1e300",
    "0x10",
    "1_000",
    "ten",
    "١",
    "9" * 400,
    "1e-300",
    "-0",
]
READ = re.compile(r"MTD_MSIL2A|_(B0[2348]_10m|(B0[1567]|B8A|B1[12]|SCL)_20m|B09_60m)\.jp2$")
"""Files of a product that are read on the 10 m grid; damage of other files is noted."""
KEPT = ("a.npy", "a.png")
"""Good files next to a hostile file (`copied`)."""
Draws = random.Random


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings for the reader (`source`), the permitted results, and a description of the damage.

    Attributes:
        refused: Whether reading the good pixels would also be wrong.
        kept: Names of scenes with unchanged rows.
        like: Good input that accepted pixels must equal, relative to the folder of good inputs; by default that of
            `kind`.
        truth: Settings for that input, if they differ from `source`.
        note: Word that an accepted scene must carry.
        altered: Whether other pixels are permitted, because the file itself is consistent and has no checksum.
        expected: Check of accepted pixels (C, H, W) and mask (H, W) that replaces `like`.
    """

    source: dict[str, Any]
    did: str
    refused: bool = True
    kept: tuple[str, ...] = ()
    like: str = ""
    truth: dict[str, Any] | None = None
    note: str = ""
    altered: bool = False
    expected: Callable[[Any, Any], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of a trial, and an address that must not be contacted."""

    good: Path
    files: Path
    outside: Path
    address: str

    def of(self, name: str) -> Path:
        """Return the good input of this name, created on first use."""
        folder = self.good / name
        if not folder.exists():
            MAKERS[name](folder)
        return folder


def make_array(folder: Path) -> None:
    """Create one land area as an array and as rasters of several tiles."""
    draws = np.random.default_rng(0)
    land = (np.array([400, 600, 350, 2500])[:, None, None] * draws.uniform(0.5, 1.5, (4, 160, 144))).astype(np.uint16)
    folder.mkdir()
    np.save(folder / "good.npy", land)
    write_geotiff(folder / "good.tif", land, **GRID)
    options = {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO", "BLOCKXSIZE": 64, "BLOCKYSIZE": 64}
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(*GRID["transform"])}
    shape = {"count": 4, "height": 160, "width": 144, "dtype": "uint16"}
    with rasterio.open(folder / "good.jp2", "w", driver="JP2OpenJPEG", **shape, **place, **options) as target:
        target.write(land)


def make_pictures(folder: Path) -> None:
    """Create one image in several formats."""
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (48, 40, 3), dtype=np.uint8))
    for name in ("good.png", "good.jpg", "good.webp", "good.tif", "good.bmp"):
        picture.save(folder / name)


def make_packed(folder: Path) -> None:
    """Create a product in a zip file."""
    synthesize("sentinel2", folder, seed=3, scenes=1, size=96)
    source = next(folder.glob("*.SAFE"))
    shutil.make_archive(str(source.with_suffix("")), "zip", folder, source.name)
    shutil.rmtree(source)


MAKERS: dict[str, Callable[[Path], object]] = {
    "safe": lambda folder: synthesize("sentinel2", folder, seed=3, scenes=1, size=96),
    **{name: partial(write_variant, name=name, seed=3) for name in VARIANTS if name != "l2a"},
    "packed": make_packed,
    "array": make_array,
    "pictures": make_pictures,
    "raw": write_products,
    "gaofen": lambda folder: synthesize("gaofen2", folder, seed=5, scenes=1, size=48),
    "geotiff": lambda folder: write_raster(folder, size=48, seed=5),
}
"""Good inputs by name: products of every type, arrays, rasters of several tiles, images."""


def replace(path: Path, content: bytes) -> None:
    """Replace a file by a new file, because it may be a hard link to the good input."""
    path.unlink()
    path.write_bytes(content)


def product(place: Place, variant: str = "safe") -> Path:
    """Return a copy of the good product."""
    source = next(place.of(variant).glob("*.SAFE"))
    return Path(shutil.copytree(source, place.files / source.name, copy_function=os.link))


def file_of(draws: Draws, folder: Path, pattern: str = "*") -> Path:
    return draws.choice(sorted(path for path in folder.rglob(pattern) if path.is_file()))


def copied(place: Place, name: str) -> bytes:
    """Copy the good array or image of this name next to the hostile file."""
    folder = next(folder for folder in (place.of("array"), place.of("pictures")) if (folder / name).exists())
    beside = Path("good.npy" if folder.name == "array" else "good.png")
    shutil.copy(folder / beside, place.files / "beside").rename(place.files / f"a{beside.suffix}")
    return (folder / name).read_bytes()


def spoilt(draws: Draws, content: bytes) -> tuple[bytes, str]:
    """Truncate bytes, flip a bit, zero a part, or append bytes."""
    at = draws.randrange(len(content))
    how = draws.choice(["cut", "bit", "hole", "zeros", "added"])
    changed = bytearray(content)
    if how == "cut":
        changed = changed[:at]
    elif how == "bit":
        changed[at] ^= 1 << draws.randrange(8)
    elif how == "added":
        changed[at:at] = draws.randbytes(draws.randrange(1, 64))
    else:
        end = min(len(content), at + draws.randrange(16, 512)) if how == "hole" else len(content)
        changed[at:end] = bytes(end - at)
    return bytes(changed), f"{how} at {at} of {len(content)}"


def special(draws: Draws, path: Path, place: Place) -> str:
    """Create a special file at `path`, or a link to a path that must not be opened."""
    pipe = place.outside / "pipe"
    targets = {"pipe": pipe, "zero": "/dev/zero", "passwd": "/etc/passwd", "dangling": "nowhere", "loop": path.name}
    how = draws.choice([*targets, "fifo", "folder"])
    if how in targets:
        path.symlink_to(targets[how])
    elif how == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    return how


def safe_bytes(draws: Draws, place: Place) -> Trial:
    path = file_of(draws, product(place))
    whole = path.read_bytes()
    content, did = spoilt(draws, whole)
    replace(path, content)
    listed = content != whole and path.name != "manifest.safe"
    read = READ.search(path.name) is not None
    return Trial(
        source=SAFE, did=f"{path.name}: {did}", refused=listed and read, note="damaged-beside" if listed else ""
    )


def safe_lacks(draws: Draws, place: Place) -> Trial:
    root = product(place)
    chosen = file_of(draws, root, draws.choice(["*_B*.jp2", "*_SCL_*.jp2", "*_10m.jp2", "*.xml"]))
    how = draws.choice(["file", "renamed", "folder"])
    if how == "file":
        chosen.unlink()
    elif how == "renamed":
        chosen.rename(chosen.with_name(f"x{chosen.name}"))
    else:
        shutil.rmtree(chosen.parent) if chosen.parent != root else chosen.unlink()
    lacks = draws.choice([[], ["HTML/*"]])
    return Trial(source={**SAFE, "may_lack": lacks}, did=f"{how} {chosen.name}")


def safe_coarse(draws: Draws, place: Place) -> Trial:
    """Keep only the coarser files of a band, in a product that may lack files of its manifest."""
    root = product(place)
    path = draws.choice(
        sorted([*root.rglob("*_B0[2348]_10m.jp2"), *root.rglob("*_B0[567]_20m.jp2"), *root.rglob("*_SCL_20m.jp2")])
    )
    path.unlink()
    return Trial(source={**SAFE, **draws.choice([{"may_lack": ["*"]}, {"checksum": "skip"}])}, did=path.name)


def safe_special(draws: Draws, place: Place) -> Trial:
    root = product(place)
    path = file_of(draws, root, draws.choice(["*_B*_10m.jp2", "*.xml", "manifest.safe", "*"]))
    path.unlink()
    how = special(draws, path, place)
    skip = path.name != "manifest.safe" and "_10m" in path.name and draws.random() < 0.5
    source = {**SAFE, **({"checksum": "skip"} if skip else {})}
    return Trial(source=source, did=f"{path.name}: {how}", refused=not skip or "_B" in path.name)  # else not a band


def safe_folder(draws: Draws, place: Place) -> Trial:
    """Replace a folder of the product by a link that leads out of it."""
    root = product(place)
    path = draws.choice([root / "GRANULE", *(root / "GRANULE").iterdir(), *root.glob("GRANULE/*/IMG_DATA")])
    shutil.move(path, place.outside / "moved")
    path.symlink_to(draws.choice([place.outside / "moved", Path("/"), place.outside]))
    return Trial(source={**SAFE, "checksum": draws.choice(["verify", "skip"])}, did=f"{path.name} -> {path.readlink()}")


def safe_href(draws: Draws, place: Place) -> Trial:
    manifest = product(place) / "manifest.safe"
    out = "../" * draws.randrange(1, 12)
    hrefs = [
        f"{out}etc/passwd",
        "/etc/passwd",
        f"{place.outside}/pipe",
        "../../outside/pipe",
        "./GRANULE/../../x",
        "/dev/zero",
    ]
    href = draws.choice([*hrefs, "", ".", "..", "file:///etc/passwd", place.address, "x" * 5000, "%2e%2e/x"])
    pieces = manifest.read_bytes().split(b'href="')
    at = draws.randrange(1, len(pieces))
    pieces[at] = href.encode() + pieces[at][pieces[at].index(b'"') :]
    replace(manifest, b'href="'.join(pieces))
    return Trial(source=SAFE, did=f"href {href[:60]}")


def safe_number(draws: Draws, place: Place) -> Trial:
    path = product(place) / "MTD_MSIL2A.xml"
    text, name = path.read_text(), draws.choice(["BOA_ADD_OFFSET", "BOA_QUANTIFICATION_VALUE", "PROCESSING_BASELINE"])
    starts = [at for at in range(len(text)) if text.startswith(f"<{name}", at) and text[at + len(name) + 1] in " >"]
    at = draws.choice(starts)
    begin, end = text.index(">", at) + 1, text.index("<", at + 1)
    number = draws.choice(
        [one for one in NUMBERS if name == "BOA_QUANTIFICATION_VALUE" or one not in ("0", "-0", "1e-300", "-10000")]
    )
    changed = text[:begin] + number + text[end:]
    if draws.random() < 0.2:
        changed = (
            text.replace(f'band_id="{draws.randrange(1, 13)}"', 'band_id="0"', 1)
            if name == "BOA_ADD_OFFSET"
            else changed
        )
    replace(path, changed.encode())
    return Trial(source={**SAFE, "checksum": "skip"}, did=f"{name} {number[:20]}")


def safe_xml(draws: Draws, place: Place) -> Trial:
    """Insert XML documents that reference others or expand when parsed."""
    path = product(place) / draws.choice(["manifest.safe", "MTD_MSIL2A.xml"])
    grow = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "grow"}">' for n in range(12))
    heads = [
        f'<!DOCTYPE a SYSTEM "{place.address}">',
        f'<!DOCTYPE a [<!ENTITY e SYSTEM "{place.outside}/pipe">]>',
        f"<!DOCTYPE a [{grow}]>",
    ]
    body = draws.choice(
        ["<a>&e;</a>", "<a>&e11;</a>", "<a b='&e11;'/>", "<a>" * 100_000, "<a>" + "x" * (65 << 20) + "</a>"]
    )
    replace(path, (draws.choice(heads) + body).encode())
    return Trial(source=SAFE, did=f"{path.name}: {body[:20]}")


def raster_bytes(draws: Draws, place: Place) -> Trial:
    """Truncate or zero the end of a tiled JPEG 2000 file, as an interrupted download does."""
    content = copied(place, "good.jp2")
    at = draws.randrange(1, len(content))
    tail = draws.choice([b"", bytes(len(content) - at)])
    (place.files / "b.jp2").write_bytes(content[:at] + tail)
    return Trial(source=ARRAY, did=f"{'zeros' if tail else 'cut'} at {at} of {len(content)}", kept=KEPT)


def raster_cut(draws: Draws, place: Place) -> Trial:
    content = copied(place, "good.tif")
    at = draws.randrange(1, len(content))
    (place.files / "b.tif").write_bytes(content[:at])
    return Trial(source=ARRAY, did=f"cut at {at} of {len(content)}", kept=KEPT)


def raster_georeference(draws: Draws, place: Place) -> Trial:
    content = copied(place, "good.tif")
    side = draws.choice([float("nan"), float("inf"), 0.0, 1e300, -1e300, 1e-300])
    good = struct.pack("<3d", 10.0, 10.0, 0.0)
    assert good in content
    (place.files / "b.tif").write_bytes(
        content.replace(good, struct.pack("<3d", side, draws.choice([side, 10.0]), 0.0))
    )
    return Trial(source=ARRAY, did=f"pixels of {side}", kept=KEPT)


def raster_network(draws: Draws, place: Place) -> Trial:
    """Add documents and sidecar files that name servers and pipes; the pixels of a true GeoTIFF must not change."""
    target = draws.choice([place.address, f"/vsicurl/{place.address}", f"{place.outside}/pipe"])
    documents = [
        f"<GDAL_WMTS><GetCapabilitiesUrl>{target}</GetCapabilitiesUrl></GDAL_WMTS>",
        f"<WCS_GDAL><ServiceURL>{target}</ServiceURL><CoverageName>x</CoverageName></WCS_GDAL>",
        f'<GDAL_WMS><Service name="WMS"><ServerUrl>{target}</ServerUrl></Service></GDAL_WMS>',
        f'<VRTDataset rasterXSize="9" rasterYSize="9"><VRTRasterBand dataType="UInt16" band="1"><SimpleSource>'
        f"<SourceFilename>{target}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>",
    ]
    path, document = place.files / "b.tif", draws.choice(documents)
    how = draws.choice(["document", ".ovr", ".msk", ".aux.xml", "inside", "pipe"])
    path.write_bytes(copied(place, "good.tif"))
    domain = f'<Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">{target}</MDI></Metadata>'
    if how == "document":
        path.write_text(document)
    elif how == "inside":
        with rasterio.open(path, "r+") as raster:
            raster.update_tags(ns="OVERVIEWS", OVERVIEW_FILE=target)
    elif how == "pipe":
        os.mkfifo(place.files / f"b.tif{draws.choice(['.ovr', '.msk', '.aux.xml'])}")
    else:
        (place.files / f"b.tif{how}").write_text(
            f"<PAMDataset>{domain}</PAMDataset>" if how == ".aux.xml" else document
        )
    return Trial(source=ARRAY, did=f"{how}: {target}", refused=how == "document", kept=KEPT)


def raster_huge(draws: Draws, place: Place) -> Trial:
    side = draws.choice([200_000, 400_000, 2**31 - 1])
    if draws.random() < 0.5:
        copied(place, "good.tif")
        shape = {"count": 4, "height": 200_000, "width": 200_000, "dtype": "uint16", "tiled": True}
        blocks = {"blockxsize": 8192, "blockysize": 8192, "SPARSE_OK": "YES", "BIGTIFF": "YES"}
        with rasterio.open(place.files / "b.tif", "w", driver="GTiff", crs="EPSG:32632", **shape, **blocks):
            pass
        return Trial(source=ARRAY, did="sparse TIFF", kept=KEPT)
    content = bytearray(copied(place, "good.jp2"))
    size, header = content.index(b"\xff\x51") + 6, content.index(b"ihdr") + 4
    struct.pack_into(">II", content, size, side, side)
    struct.pack_into(">II", content, header, side, side)
    tile = draws.choice([64, side])
    struct.pack_into(">II", content, size + 16, tile, tile)
    (place.files / "b.jp2").write_bytes(content)
    return Trial(source=ARRAY, did=f"JP2 of {side}, tiles of {tile}", kept=KEPT)


def array_header(draws: Draws, place: Place) -> Trial:
    content = copied(place, "good.npy")
    shapes = [
        "(4, 1000000000000)",
        "(1000000, 1000000)",
        "(-4, 160, 144)",
        "(4, 160, 143)",
        "(4, 160, 145)",
        "(0,)",
        "()",
        "((4,), 160, 144)",
    ]
    headers = [f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}" for shape in shapes]
    headers += [
        "{'descr': '|O', 'fortran_order': False, 'shape': (4, 160, 144), }",
        "[" * 300,
        "{",
        "'a",
        "1" * 3000,
        "{'descr': 1}",
        "\\",
    ]
    headers += [
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (4, 160, 144), }",
        "__import__('os').system('touch pwned')",
    ]
    header = draws.choice(headers).encode()
    version = draws.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header) + 1)
    (place.files / "b.npy").write_bytes(b"\x93NUMPY" + version + size + header + b"\n" + content[128:])
    return Trial(source=ARRAY, did=header.decode()[:80], kept=KEPT)


def array_other(draws: Draws, place: Place) -> Trial:
    """Write archives, objects, mismatched numbers, or too many or too few bytes under the name of an array."""
    content, path = copied(place, "good.npy"), place.files / "b.npy"
    land = np.load(place.of("array") / "good.npy")
    how = draws.choice(["npz", "wrap", "objects", "cut", "added", "garbage"])
    if how == "npz":
        np.savez(place.files / "b.npz", land)
        (place.files / "b.npz").rename(path)
    elif how == "wrap":
        kind = draws.choice(["uint32", "int64", "uint64", "int32"])
        most = int(np.iinfo(kind).max)
        wide = land.astype(kind)
        wide[draws.randrange(4), draws.randrange(160), draws.randrange(144)] = draws.choice(
            [most, most - draws.randrange(2000), min(most, 2**32 + 3000), 2**31 - 1, 2**31 - 2000, 40_000]
        )
        np.save(path, wide)
    elif how == "objects":
        np.save(path, np.array([{}], dtype=object))
    else:
        changed = content[: draws.randrange(len(content))] if how == "cut" else content + b"\0" * draws.randrange(1, 99)
        path.write_bytes(draws.randbytes(500) if how == "garbage" else changed)
    return Trial(source=ARRAY, did=how, kept=KEPT)


def special_name(draws: Draws, place: Place) -> Trial:
    """Create pipes, devices and links with the suffix of a scene or image, and names that no table can store."""
    source = draws.choice([ARRAY, PICTURES])
    content = copied(place, "good.tif" if source is ARRAY else "good.jpg")
    suffix = draws.choice([".tif", ".npy", ".jp2"] if source is ARRAY else [".png", ".JPEG", ".webp"])
    if draws.random() < 0.3:
        Path(os.fsdecode(os.fsencode(place.files) + b"/\xff\xfe" + suffix.encode())).write_bytes(content)
        return Trial(source=source, did=f"a name that is not UTF-8{suffix}", kept=KEPT)
    path = place.files / f"b{suffix}"
    how = special(draws, path, place)
    return Trial(source=source, did=f"{how}{suffix}", refused=how != "folder", kept=KEPT)


def picture_bytes(draws: Draws, place: Place) -> Trial:
    name = draws.choice(["good.png", "good.jpg", "good.webp", "good.bmp"])
    content = copied(place, name)
    at = draws.randrange(1, len(content) - 16)
    programs = [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(pwned) (w) file\n",
        b"<svg/>",
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n",
    ]
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 2**30, 2**30) + content[24:]
    changed = draws.choice(
        [content[:at], draws.choice(programs) + draws.randbytes(99), huge if name == "good.png" else b""]
    )
    (place.files / f"b{Path(name).suffix}").write_bytes(changed)
    return Trial(
        source=PICTURES, did=f"{name}: {len(changed)} bytes, {changed[:12]!r}", refused=len(changed) != at, kept=KEPT
    )


def picture_thin(draws: Draws, place: Place) -> Trial:
    """Write an image with a short side of one pixel: resampled to 256 pixels, the long side exceeds the memory."""
    copied(place, "good.png")
    Image.new("RGB", (draws.randrange(100_000, 400_000), 1)).save(place.files / "b.png")
    return Trial(source={**PICTURES, "size": 256}, did="thin", kept=KEPT)


GENERATORS: list[Callable[[Draws, Place], Trial]] = [
    *(safe_bytes, safe_lacks, safe_coarse, safe_special, safe_folder, safe_href, safe_number, safe_xml),
    *(raster_bytes, raster_cut, raster_georeference, raster_network, raster_huge),
    *(array_header, array_other, special_name, picture_bytes, picture_thin),
]
