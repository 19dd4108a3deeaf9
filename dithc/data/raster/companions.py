"""Files next to a raster: its mask, its world file and the metadata that GDAL keeps in NAME.aux.xml."""

import os
from pathlib import Path

import numpy as np
from rasterio.transform import Affine

from dithc.core.logging import user_error
from dithc.data.file_checks import open_regular
from dithc.data.geometry import GeoTransform

AUX_GEOREFERENCE = (b"<SRS", b"<GeoTransform", b"<GCPList")
AUX_NUMBERS = (b"<NoDataValue", b'"NODATA_VALUES"', b"<ColorInterp>Alpha", b"<Scale>", b"<Offset>")
AUX_BYTES, WORLD_BYTES = 1 << 20, 1 << 10


def companion(path: Path, *ends: str) -> Path | None:
    """Return the first file next to a raster, or to the target of a link, with one of the ends (`.msk`; `/wld`: NAME.wld).

    Raises UserError for a link to another folder than the raster's.
    """
    rasters = (path, Path(os.path.realpath(path)))
    candidates = [
        raster.with_suffix(f".{end[1:]}") if end[0] == "/" else raster.with_name(raster.name + end)
        for raster in rasters
        for end in ends
    ]
    sidecar = next((candidate for candidate in candidates if os.path.lexists(candidate)), None)
    folders = {os.path.realpath(raster.parent) for raster in rasters}
    if sidecar is not None and os.path.dirname(os.path.realpath(sidecar)) not in folders:
        raise user_error(
            f"a file next to {path} is a link to another folder",
            got=f"{sidecar.name}, which leads to {os.path.realpath(sidecar)}",
            expected="a file in the folder of the raster",
            fix="copy the file there, or remove the link if the raster does not need it",
        )
    return sidecar


def check_aux(path: Path) -> None:
    """Raise UserError if NAME.aux.xml declares place, no-data value or scale, because the file is not evaluated."""
    aux = companion(path, ".aux.xml")
    if aux is None or not aux.is_file():
        return
    with aux.open("rb") as file:
        text = file.read(AUX_BYTES)
    if len(text) == AUX_BYTES or any(tag in text for tag in (*AUX_GEOREFERENCE, *AUX_NUMBERS)):
        raise user_error(
            f"the place, the no-data value or the scale of {path} is declared in a file next to it",
            got=aux.name,
            expected="one file with all of them; GDAL's .aux.xml is not evaluated",
            fix="write them into one file (gdal_translate IN.tif OUT.tif), or remove the .aux.xml if it is wrong",
        )


def read_world(path: Path) -> tuple[Path, GeoTransform] | None:
    """Return the world file (.tfw, .tifw, .wld) of a raster and its coefficients, or None; UserError if invalid."""
    end = path.suffix[1:].lower() or "tif"
    ends = [f"/{end[0]}{end[-1]}w", f"/{end}w", "/wld"]
    world = companion(path, *ends, *map(str.upper, ends))
    if world is None:
        return None
    with open_regular(world) as file:
        text = file.read(WORLD_BYTES).decode("ascii", "replace")
    try:
        a, d, b, e, c, f = (float(number.replace(",", ".")) for number in text.split()[:6])
        if not np.isfinite([a, b, c, d, e, f]).all() or a * e == b * d:
            raise ValueError
    except ValueError:
        raise user_error(
            f"{world} is not a world file",
            got=repr(text[:40]),
            expected="six numbers: the sides of a pixel and the center of the first pixel",
            fix="write the file again, or remove it",
        ) from None
    first = Affine(a, b, c, d, e, f) * Affine.translation(-0.5, -0.5)
    return world, (first.a, first.b, first.c, first.d, first.e, first.f)
