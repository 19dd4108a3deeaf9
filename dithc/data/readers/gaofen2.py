"""Gaofen-2 multispectral scenes: orthorectified 4-band GeoTIFF with its XML, or .npy cut from one."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.data.readers.listing import list_files, scene_id
from dithc.data.readers.rasters import SUFFIXES, read_pixels
from dithc.data.scene import Mask, Reason, Refused, Scene, located
from dithc.data.xml import find_text, read_xml
from dithc.log import logger
from dithc.runs import sha256_file

DTYPES = {"dn": "uint16", "byte": "uint8"}
PANCHROMATIC = re.compile(r"(?:^|[-_])PAN\d?(?:$|[-_.])", re.IGNORECASE)
FACTS = {
    "product_id": ("ProductID",),
    "satellite": ("SatelliteID",),
    "sensor": ("SensorID",),
    "sensing_time": ("CenterTime", "ReceiveTime"),
    "level": ("ProductLevel",),
}
log = logger(__name__)


class Gaofen2Reader:
    """Reads the multispectral files under a folder; the panchromatic file of a product is left alone."""

    def __init__(self, source: datasets.Gaofen2, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.classes: list[str] = [source.kind]
        self.paths = list_files(
            folder,
            suffixes=SUFFIXES,
            use=lambda path: not PANCHROMATIC.search(path.stem),
            wanted=f"{len(source.bands)}-band GeoTIFF (.tif, .tiff) or .npy files of multispectral scenes",
            remedy="point `source.path` at a folder with the orthorectified MSS files; unpack .tar.gz products first",
        )

    def read(self, path: Path) -> Scene:
        """Reads one file; the mask is invalid where every band is 0 (outside the footprint) or the file's no data."""
        source = self.source
        raw = read_pixels(path, bands=source.bands, layout=source.layout, gsd_m=source.gsd_m, georeferenced=True)
        wanted = DTYPES[source.units]
        if raw.pixels.dtype != wanted:
            fitting = {kind: units for units, kind in DTYPES.items()}.get(str(raw.pixels.dtype))
            raise Refused(
                Reason.WRONG_DTYPE,
                "the type of the pixels contradicts the declared units",
                got=f"{raw.pixels.dtype}, values {raw.pixels.min()} to {raw.pixels.max()}",
                expected=f"{wanted} for `units: {source.units}`",
                remedy=f"set `units: {fitting}`"
                if fitting
                else "save it as uint16 (digital numbers) or uint8 (stretched)",
            )
        invalid = (raw.pixels == 0).all(axis=0)  # (H, W)
        if raw.nodata is not None:
            invalid |= (raw.pixels == raw.nodata).any(axis=0)
        mask = np.where(invalid, Mask.INVALID, Mask.VALID).astype(np.uint8)
        pixels, located_mask = located(
            np.ascontiguousarray(raw.pixels), mask, bands=source.bands, place=raw.place, units=source.units
        )
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=sha256_file(path),
            pixels=pixels,
            mask=located_mask,
            place=raw.place,
            facts=self._facts(path),
        )

    def _facts(self, path: Path) -> dict[str, Any]:
        """What the XML beside the file says; nothing for .npy and for files that came without."""
        if path.suffix.lower() == ".npy":
            return {}
        beside = [path.with_suffix(suffix) for suffix in (".xml", ".XML")]
        found = next((xml for xml in beside if xml.exists()), None)
        if found is None:
            log.warning(f"{path} has no XML beside it: its satellite, sensor and time stay unknown")
            return {}
        root = read_xml(found)
        return {
            fact: next(filter(None, (find_text(root, name) for name in names)), None) for fact, names in FACTS.items()
        }
