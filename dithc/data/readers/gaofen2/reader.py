"""Gaofen-2 multispectral scenes: orthorectified 4-band GeoTIFF with its XML, .npy excerpts, or products of level 1A."""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.artifacts import sha256_file
from dithc.core.logging import get_logger
from dithc.data.file_checks import combined_sha256, memory_bytes
from dithc.data.parquet import Kind
from dithc.data.raster import read_raster
from dithc.data.readers.gaofen2.calibration import Acquisition, calibrate
from dithc.data.readers.gaofen2.level1a import (
    PRODUCT,
    Orthorectifier,
    find_xml,
    is_archive,
    open_product,
    panchromatic_files,
    product_of,
)
from dithc.data.readers.gaofen2.rpc import find_rpc
from dithc.data.readers.listing import RASTERS, Listing, SidecarIndex, glob, scene_id
from dithc.data.readers.rasters import RasterPixels, check_dtype, convert, read_pixels
from dithc.data.readers.tags import check_tags
from dithc.data.scene import Mask, Reason, Scene, SceneRejectedError, Units
from dithc.data.xml import Element, find_text, read_xml, sun_position

PANCHROMATIC = re.compile(r"(?:^|[-_])PAN\d?(?:$|[-_.])", re.IGNORECASE)
ARCHIVES = {".gz", ".tgz"}
MAX_TIME_DIFFERENCE = timedelta(days=2)
TAGS = {
    "product_id": ("ProductID",),
    "satellite": ("SatelliteID",),
    "sensor": ("SensorID",),
    "sensing_time": ("CenterTime", "ReceiveTime"),
    "level": ("ProductLevel",),
}
PANSHARPEN_COLUMNS: dict[str, Kind] = {
    "pansharpened": "text",
    "pan_shift_m": "floats",
    "ergas": "float",
    "sam_degrees": "float",
    "q": "float",
}
log = get_logger(__name__)


class Gaofen2Reader:
    """Reader of multispectral files; the panchromatic file of a product is only used for pansharpening."""

    def __init__(self, source: datasets.Gaofen2Source, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.classes: list[str] = [source.kind]
        self._sidecars = SidecarIndex()
        # An orthorectified product of level 1A may fill the memory, so that two do not fit.
        self.memory_bytes = memory_bytes() if source.takes_raw else None
        self.columns: dict[str, Kind] = {"orthorectified": "text"} if source.takes_raw else {}
        if source.takes_raw or glob(folder if folder.is_dir() else folder.parent, "**/*.[xX][mM][lL]"):
            self.columns |= {"sun_elevation": "float", "sun_azimuth": "float"}
        if source.calibrate != "none":
            self.columns["gains"] = "floats"
        if source.pansharpen != "none":
            self.columns |= PANSHARPEN_COLUMNS
        self.ground = Orthorectifier(source) if source.takes_raw else None
        self.listing = Listing(source, folder)
        files = self.listing.files(
            suffixes=RASTERS | (ARCHIVES if source.takes_raw else set()),
            accept=lambda path: (
                not PANCHROMATIC.search(path.stem) and (path.suffix.lower() not in ARCHIVES or is_archive(path))
            ),
            expected=f"{len(source.bands)}-band GeoTIFF (.tif, .tiff) or .npy files of multispectral scenes",
            fix="point `source.path` at a folder with the orthorectified MSS files; for delivered products of level 1A "
            "(GF2_..._L1A....tar.gz) set `height_m` or `dem`; unpack .tar.gz of other names first",
        )
        self.listing.read([path for path in self.listing.unread if PANCHROMATIC.search(path.stem)])
        unpacked = {product_of(path) for path in files if not is_archive(path)}
        self.paths = [path for path in files if not is_archive(path) or product_of(path) not in unpacked]
        if len(self.paths) < len(files):
            log.info(
                f"skipping {len(files) - len(self.paths)} archives in {folder}: their products are also there unpacked"
            )

    def inputs(self, path: Path) -> list[Path]:
        return self._sidecars(path, product_of(path) if self.source.takes_raw else None)

    def read(self, path: Path) -> Scene:
        """Read one file; pixels are invalid if all bands are 0 (outside the footprint) or the file excludes one."""
        source = self.source
        with open_product(path, pan=source.pansharpen != "none") as image:
            is_array = image.suffix.lower() == ".npy"
            xml = None if is_array else find_xml(image)
            if xml is None and not is_array:
                log.warning(f"{image} has no XML next to it: its satellite, sensor and time are unknown")
            metadata = None if xml is None else read_xml(xml)
            product = _properties(metadata)
            _check_name(image, product)
            raw, properties = self._read_image(image, metadata)
            sha256 = self._sha256(path, xml, raw, ground="orthorectified" in properties)
            check_tags(image, raw.labels, bands=source.bands, default_colors=raw.pixels.dtype == np.uint8)
            check_dtype(raw.pixels, units=source.units)
        invalid = (raw.pixels == 0).all(axis=0) | raw.invalid(raw.nodata).any(axis=0)  # (H, W)
        pixels, scale = np.ascontiguousarray(raw.pixels), 1.0
        units: Units = source.units
        if source.calibrate != "none":
            calibrated = calibrate(pixels, invalid, source=source, metadata=_acquisition(product, metadata))
            pixels, units, scale = calibrated.pixels, calibrated.units, calibrated.scale
            properties |= calibrated.properties
        mask = np.where(invalid, Mask.INVALID, Mask.VALID).astype(np.uint8)
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=sha256,
            pixels=pixels,
            mask=mask,
            bands=source.bands,
            place=raw.place,
            units=units,
            scale=scale,
            properties=product | properties,
            notes=raw.notes,
        )

    def _read_image(self, path: Path, metadata: Element | None) -> tuple[RasterPixels, dict[str, Any]]:
        source = self.source
        if path.suffix.lower() == ".npy" or self.ground is None:
            raw = read_pixels(
                path, bands=source.bands, layout=source.axis_order, gsd_m=source.gsd_m, georeferenced=True
            )
            return raw, {}
        pixels, info = read_raster(path, bands=source.bands)
        coefficients = find_rpc(path)
        if info.crs is None and coefficients is not None:
            return self.ground.to_ground(path, pixels, info, coefficients, metadata)
        if source.pansharpen != "none":
            raise SceneRejectedError(
                Reason.CRS_WRONG,
                "only products of level 1A are pansharpened",
                got=f"an image in {info.crs}",
                expected="multispectral and panchromatic images with their .rpb",
                fix="point `source.path` at the products of level 1A, or set `pansharpen: none`",
            )
        return convert(pixels, info, bands=source.bands, gsd_m=source.gsd_m, georeferenced=True), {}

    def _sha256(self, path: Path, xml: Path | None, raw: RasterPixels, *, ground: bool) -> str:
        """Return the hash of an archive, of a raster with mask and world file, or of all files read of a 1A product."""
        if is_archive(path):
            return sha256_file(path)
        sharpened = panchromatic_files(path) if self.source.pansharpen != "none" else ()
        used = (find_rpc(path), xml, *sharpened) if ground else ()
        return combined_sha256({file.name: file for file in (path, *used, *raw.companions) if file is not None})


def _properties(root: Element | None) -> dict[str, Any]:
    if root is None:
        return {}
    texts = {key: next(filter(None, (find_text(root, name) for name in names)), None) for key, names in TAGS.items()}
    return {**texts, **sun_position(root, "SolarZenith", "SolarAzimuth")}


def _check_name(path: Path, product: dict[str, Any]) -> None:
    """Raise SceneRejectedError if name and XML of a product, which decide calibration, differ in satellite, camera or day."""
    match = PRODUCT.match(path.name)
    if match is None:
        return
    declared = [re.sub(r"[^A-Z0-9]", "", (product.get(name) or "").upper()) for name in ("satellite", "sensor")]
    is_equal = all(not value or value == expected for value, expected in zip(declared, match.group(2, 3), strict=True))
    with suppress(ValueError):
        sensing_time = datetime.fromisoformat(product.get("sensing_time") or "").replace(tzinfo=None)
        is_equal &= abs(sensing_time - datetime.strptime(f"{match[4]}12", "%Y%m%d%H")) <= MAX_TIME_DIFFERENCE
    if not is_equal:
        raise SceneRejectedError(
            Reason.READ_ERROR,
            "the name of the product and its XML contradict each other",
            got=", ".join(str(product.get(name)) for name in ("satellite", "sensor", "sensing_time")),
            expected=", ".join(match.group(2, 3, 4)),
            fix="unpack or download the product again: its XML is damaged or belongs to another product",
        )


def _acquisition(product: dict[str, Any], root: Element | None) -> Acquisition:
    time = zenith = None
    with suppress(ValueError):
        time = datetime.fromisoformat(product.get("sensing_time") or "")
    with suppress(ValueError):
        zenith = float((root is not None and find_text(root, "SolarZenith")) or "")
    return Acquisition(satellite=product.get("satellite"), sensor=product.get("sensor"), time=time, solar_zenith=zenith)
