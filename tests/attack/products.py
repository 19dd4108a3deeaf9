"""Hostile data files and products from a seed; each generator damages a good input in a different way.

A generator receives random draws, the folder of good inputs and the folder to fill, and returns the settings for the
reader. Its output must be rejected with a reason, or read with exactly the pixels of the good input. Links and paths
out of it lead to pipes, so that opening them blocks forever. Addresses lead to a socket that counts connections.
"""

import os
import random
import shutil
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


GENERATORS = [raster_network]
