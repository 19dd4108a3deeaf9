"""Hostile rasters with a file per band, and images: other types and grids, odd folders."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from PIL import Image

from dithc.data.raster import write_geotiff
from tests.attack.products import GOOD_FILES, IMAGE_FOLDER, Draws, Trial, Workspace, copy_good_image, make_special_file

BANDS = ["blue", "green", "red", "nir", "swir1", "swir2"]
LANDSAT: dict[str, Any] = {"kind": "geotiff", "bands": BANDS, "units": "reflectance", "scale": 2.75e-5, "offset": -0.2}
SUFFIXES = [f"_B{number}.tif" for number in range(2, 8)]
SEPARATE_BANDS = {**LANDSAT, "suffixes": SUFFIXES}


def good_raster(workspace: Workspace) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    with rasterio.open(next(workspace.good_input("geotiff").glob("*.tif"))) as raster:
        return raster.read(), {
            "transform": tuple(raster.transform)[:6],
            "epsg": raster.crs.to_epsg(),
            "nodata": raster.nodata,
        }


def separate_bands(draws: Draws, workspace: Workspace) -> Trial:
    """Separate bands: one is missing, duplicated in another case, of another grid, type or scene, or not a file."""
    pixels, georeference = good_raster(workspace)
    a, b, c, d, e, f = georeference["transform"]
    for suffix, band in zip(SUFFIXES, pixels, strict=True):
        write_geotiff(workspace.files / f"x{suffix}", band[None], **georeference)
    number = draws.randrange(1, 6)
    path = workspace.files / f"x{SUFFIXES[number]}"
    upper = path.with_name(f"x{SUFFIXES[number].upper()}")
    band = pixels[number : number + 1]
    variants: dict[str, tuple[Callable[[], object], bool]] = {
        "absent": (path.unlink, True),
        "renamed": (lambda: path.rename(path.with_name(f"y{SUFFIXES[number]}")), True),
        "another scene's": (lambda: path.rename(path.with_name(f"X{SUFFIXES[number]}")), True),
        "other letters": (lambda: path.rename(upper), False),
        "both": (lambda: write_geotiff(upper, band // 2, **georeference), False),
        "two alike": (
            lambda: (
                path.rename(upper),
                shutil.copy(upper, path.with_suffix(".Tif")),
                write_geotiff(upper, band // 2, **georeference),
            ),
            True,
        ),
        "moved": (lambda: write_geotiff(path, band, **{**georeference, "transform": (a, b, c + a, d, e, f)}), True),
        "zone": (lambda: write_geotiff(path, band, **{**georeference, "epsg": georeference["epsg"] + 1}), True),
        "shape": (lambda: write_geotiff(path, band[:, :-1], **georeference), True),
        "type": (lambda: write_geotiff(path, band.astype(np.float32), **georeference), True),
        "two bands": (lambda: write_geotiff(path, band.repeat(2, axis=0), **georeference), True),
        "no data": (lambda: write_geotiff(path, band, **{**georeference, "nodata": 7}), True),
        "special": (lambda: (path.unlink(), make_special_file(draws, path, workspace)), True),
        "forbidden": (lambda: path.chmod(0), True),
        "empty": (lambda: path.write_bytes(b""), True),
    }
    damage = draws.choice(sorted(variants))
    do, rejected = variants[damage]
    do()
    return Trial(source=SEPARATE_BANDS, truth=LANDSAT, did=f"{path.name}: {damage}", rejected=rejected)


def image_values(draws: Draws, workspace: Workspace) -> Trial:
    """Flip a bit of an image: detected by the checksums of PNG; a JPEG may show any image."""
    name = draws.choice(["good.png", "good.png", "good.jpg", "good.webp", "good.bmp"])
    content = bytearray(copy_good_image(workspace, name))
    at = draws.randrange(len(content))
    content[at] ^= 1 << draws.randrange(8)
    damage = "bit"
    if name == "good.png" and draws.random() < 0.3:  # a false header with a valid checksum
        damage = "header"
        struct.pack_into(
            ">II", content, 16, *draws.choice([(40, 47), (40, 49), (0, 48), (2**31, 1), (2**31 - 1, 2**31 - 1)])
        )
        struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (workspace.files / f"b{Path(name).suffix}").write_bytes(content)
    return Trial(
        source=IMAGE_FOLDER,
        did=f"{name}: {damage} at {at}",
        rejected=False,
        kept=GOOD_FILES,
        altered=name != "good.png" or damage == "header",
    )


def image_folders(draws: Draws, workspace: Workspace) -> Trial:
    """Create class folders that are links, empty, protected or oddly named; the good class keeps its label."""
    good = workspace.files / "a"
    good.mkdir()
    shutil.copy(workspace.good_input("images") / "good.png", good / "a.png")
    damage = draws.choice(["link", "empty", "forbidden", "latin-1", "file", "loop", "forbidden file", "pipe", "mode"])
    source = {**IMAGE_FOLDER, "classes": "folders"}
    other = workspace.files / "b"
    if damage == "link":
        other.symlink_to(draws.choice(["/", "/dev", workspace.outside, "nowhere"]))
    elif damage == "loop":
        other.symlink_to(workspace.files)
    elif damage == "file":
        other.write_bytes(b"x")
    elif damage == "latin-1":
        Path(os.fsdecode(os.fsencode(workspace.files) + b"/\xff\xfe")).mkdir()
        shutil.copy(good / "a.png", Path(os.fsdecode(os.fsencode(workspace.files) + b"/\xff\xfe")) / "b.png")
    else:
        other.mkdir()
        if damage == "forbidden":
            other.chmod(0)
        elif damage == "forbidden file":
            shutil.copy(good / "a.png", other / "b.png").chmod(0)
        elif damage == "pipe":
            os.mkfifo(other / "b.png")
        elif damage == "mode":
            Image.fromarray(np.full((48, 40), 0.5, np.float32)).save(other / "b.tif")
    return Trial(source=source, truth=IMAGE_FOLDER, did=damage, rejected=False)


GENERATORS = [separate_bands, image_values, image_folders]
