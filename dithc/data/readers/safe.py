"""Sentinel-2 products as ESA delivers them: `.SAFE` folders, L1C or L2A, all bands on one grid."""

from contextlib import suppress
from math import copysign
from pathlib import Path

import numpy as np

from dithc.config import datasets
from dithc.data.files import check_room
from dithc.data.raster import Grid, RasterInfo, read_raster, regrid
from dithc.data.readers.listing import exists, nothing_found, scene_id
from dithc.data.readers.rasters import TOLERANCE, check_projected, square_pixel
from dithc.data.readers.safe_files import (
    LEVEL_BANDS,
    NATIVE_GSD_M,
    SCENE_CLASSIFICATION,
    BandFile,
    band_files,
    products,
)
from dithc.data.readers.safe_metadata import (
    Level,
    ProductMetadata,
    combined_sha256,
    level_of,
    listed_files,
    metadata_file,
    read_metadata,
    verify_files,
)
from dithc.data.scene import REFLECTANCE_SCALE, Array, Mask, Place, Reason, Refused, Scene, located, stored_reflectance
from dithc.log import logger, problem

NODATA, SATURATED = 0, 65535
INVALID_CLASSES = (0, 1)
"""No data, saturated or defective."""
CLOUD_CLASSES = (3, 8, 9, 10)
"""Cloud shadow, cloud of medium and high probability, thin cirrus: pixels that do not show the ground's reflectance."""
STRIP_ROWS = 1024
log = logger(__name__)


class SafeReader:
    """Reads products; every band's own file is opened, never GDAL's SENTINEL2 driver."""

    def __init__(self, source: datasets.Sentinel2, folder: Path) -> None:
        self.source, self.folder, self.classes = source, folder, ["sentinel2"]
        wanted = "Sentinel-2 products: unpacked folders *.SAFE with MTD_MSIL1C.xml or MTD_MSIL2A.xml in them"
        exists(folder, wanted=wanted)
        self.paths = sorted(products(folder)) if folder.is_dir() else []
        self._check_bands()
        if not self.paths:
            remedy = "unpack .zip products; for loose band stacks (GeoTIFF, .npy) use `kind: sentinel2-array`"
            raise nothing_found(folder, wanted=wanted, remedy=remedy)
        levels: dict[Path, Level] = {}
        for path in self.paths:
            with suppress(Refused, OSError):  # what is no product is a row of its own, when it is read
                levels[path] = level_of(path)
        by_level = {wanted: [path for path, level in levels.items() if level == wanted] for wanted in LEVEL_BANDS}
        if all(by_level.values()):
            raise problem(
                f"the products in {folder} are of two levels, which have other bands and other physics",
                got=", ".join(f"{len(paths)} {level} (such as {paths[0].name})" for level, paths in by_level.items()),
                expected="one level in a data set",
                remedy="make a data set for each level, with a folder of its own",
            )

    def _check_bands(self) -> None:
        """Refuses a grid that is finer than every band of `bands`: all pixels would be invented."""
        bands = self.source.bands or NATIVE_GSD_M
        finest = min(NATIVE_GSD_M[band] for band in bands)
        if self.source.bands and finest > self.source.gsd_m:
            raise problem(
                "the grid is finer than every band that is asked for (`source.bands`)",
                got=f"`gsd_m: {self.source.gsd_m:g}` for {', '.join(bands)}",
                expected=f"`gsd_m` of {finest:g} or more",
                remedy=f"set `gsd_m: {finest:g}`, or take a finer band with them",
            )

    def read(self, path: Path) -> Scene:
        """Reads one product as int16 reflectance (C, H, W) on the grid of its finest band, or of `gsd_m`."""
        files = band_files(path, level_of(path), bands=self.source.bands, gsd_m=self.source.gsd_m)
        notes = self._verify(path, [metadata_file(path), *(file.path for file in files.values())])
        metadata = read_metadata(path)
        bands: list[str] = [*(self.source.bands or LEVEL_BANDS[metadata.level])]
        classes = files.pop(SCENE_CLASSIFICATION, None)
        first = min((files[band] for band in bands), key=lambda file: file.gsd_m)
        grid = _common_grid(_checked(first)[1], gsd_m=self.source.gsd_m)
        check_room(path, 2 * len(bands) * grid.shape[0] * grid.shape[1], said=f"{len(bands)} x {grid.shape} of int16")
        stored = np.empty((len(bands), *grid.shape), dtype=np.int16)  # (C, H, W)
        mask = np.full(grid.shape, Mask.VALID, dtype=np.uint8)  # (H, W)
        for index, band in enumerate(bands):
            self._band(files[band], grid, metadata, into=stored[index], mask=mask)
        if classes is not None:
            _apply_classes(classes, grid, mask)
        elif metadata.level == "L2A":
            log.warning(f"{path.name} has no scene classification (SCL): its clouds are not masked")
        place = Place(gsd_m=self.source.gsd_m, crs=grid.crs, epsg=grid.epsg, transform=grid.transform)
        pixels, located_mask = located(
            stored, mask, bands=bands, place=place, units="reflectance", scale=REFLECTANCE_SCALE
        )
        used = [file.path for file in (*files.values(), *([classes] if classes else []))]
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256(path, used),
            pixels=pixels,
            mask=located_mask,
            place=place,
            facts={**metadata.facts, "offsets": [metadata.offsets[band] for band in bands]},
            notes=notes,
        )

    def _verify(self, product: Path, used: list[Path]) -> tuple[str, ...]:
        """Compares the product with its manifest; notes where files that are not used are absent or damaged."""
        if self.source.checksum == "skip":
            return ()
        listed = listed_files(product)
        if listed is None:
            log.warning(f"{product.name} has no manifest.safe: its files cannot be checked, only their hashes are kept")
            return ()
        absent, damaged = verify_files(product, listed, used=used, may_lack=self.source.may_lack)
        if damaged:
            more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            log.warning(
                f"{product.name} is damaged beside what is read: {damaged[0]}{more} is not what manifest.safe lists"
            )
        return (*(["incomplete"] if absent else []), *(["damaged-beside"] if damaged else []))

    def _band(self, file: BandFile, grid: Grid, metadata: ProductMetadata, *, into: Array, mask: Array) -> None:
        """Reads a band onto the grid as stored reflectance, and marks in `mask` where it is not valid."""
        native, info = _checked(file)
        native[native == SATURATED] = NODATA
        digital, invalid = _on_grid(native, info, grid, band=file.band)
        for top in range(0, grid.shape[0], STRIP_ROWS):  # a strip at a time: the 32-bit sums of a whole band are large
            rows = slice(top, top + STRIP_ROWS)
            into[rows] = stored_reflectance(
                digital[rows],
                offset=metadata.offsets[file.band],
                per_unit=metadata.quantification,
                invalid=invalid[rows],
                what=f"a value of {file.band}",
            )
        mask[invalid] = Mask.INVALID


def _checked(file: BandFile) -> tuple[Array, RasterInfo]:
    """Reads a band's file (h, w) after checks of type, system and pixel size."""
    pixels, info = read_raster(file.path)
    wanted = "uint8" if file.band == SCENE_CLASSIFICATION else "uint16"
    if info.dtype != wanted or info.count != 1:
        raise Refused(
            Reason.WRONG_DTYPE,
            f"{file.path.name} is not a band of digital numbers",
            got=f"{info.count} bands of {info.dtype}",
            expected=f"one band of {wanted}",
            remedy="download the product again; its files were converted",
        )
    if info.crs is None:
        raise Refused(
            Reason.CRS_MISSING,
            f"{file.path.name} has no coordinate reference system",
            got="none",
            expected="the UTM zone of the product (EPSG:326xx, EPSG:327xx)",
            remedy="download the product again; its files were converted",
        )
    check_projected(info)
    gsd = square_pixel(info.transform)
    if abs(gsd - file.gsd_m) > TOLERANCE * file.gsd_m:
        raise Refused(
            Reason.RESOLUTION_MISMATCH,
            f"the pixels of {file.path.name} have another size than its name says",
            got=f"{gsd:g} m ({info.width} x {info.height} pixels)",
            expected=f"{file.gsd_m:g} m",
            remedy="use the original product; this one was resampled",
        )
    if info.driver != "JP2OpenJPEG" and file.path.suffix.lower() == ".jp2":
        log.warning(f"{file.path.name} is named as JPEG 2000 but is {info.driver}: read as what it is")
    return pixels[0], info  # (h, w)


def _common_grid(info: RasterInfo, *, gsd_m: float) -> Grid:
    """The grid of pixel size `gsd_m` with the extent of the finest band."""
    a, _, left, _, e, top = info.transform
    scale = abs(a) / gsd_m
    shape = (max(1, round(info.height * scale)), max(1, round(info.width * scale)))
    transform = (copysign(gsd_m, a), 0.0, left, 0.0, copysign(gsd_m, e), top)
    assert info.crs is not None
    return Grid(crs=info.crs, epsg=info.epsg, transform=transform, shape=shape)


def _on_grid(native: Array, info: RasterInfo, grid: Grid, *, band: str) -> tuple[Array, Array]:
    """A band on the common grid (bilinear, no data left out) and where it has no data (nearest pixel, or nothing near).

    Raises:
        Refused: the band is in another system, or does not cover the grid.
    """
    _check_cover(info, grid, band=band)
    if info.transform == grid.transform and native.shape == grid.shape:
        return native, native == NODATA
    digital = regrid(native, transform=info.transform, grid=grid, how="bilinear", nodata=NODATA)
    invalid = digital == NODATA
    if (native == NODATA).any():
        empty = (native == NODATA).astype(np.uint8)
        invalid |= regrid(empty, transform=info.transform, grid=grid, how="nearest", nodata=255) != 0
    return digital, invalid


def _check_cover(info: RasterInfo, grid: Grid, *, band: str) -> None:
    if info.crs != grid.crs:
        raise Refused(
            Reason.CRS_MIXED,
            f"{band} is in another coordinate reference system than the finest band",
            got=info.crs,
            expected=grid.crs,
            remedy="download the product again; its files are of different places",
        )
    own = Grid(crs=grid.crs, epsg=grid.epsg, transform=info.transform, shape=(info.height, info.width))
    (left, right, bottom, top), (wanted_left, wanted_right, wanted_bottom, wanted_top) = own.bounds, grid.bounds
    slack = abs(info.transform[0]) / 2
    covers = left <= wanted_left + slack and right >= wanted_right - slack
    if not (covers and bottom <= wanted_bottom + slack and top >= wanted_top - slack):
        raise Refused(
            Reason.GRID_MISMATCH,
            f"{band} does not cover the area of the finest band",
            got=f"x {left:g} to {right:g}, y {bottom:g} to {top:g}",
            expected=f"at least x {wanted_left:g} to {wanted_right:g}, y {wanted_bottom:g} to {wanted_top:g}",
            remedy="use the original product; this one was cut band by band",
        )


def _apply_classes(file: BandFile, grid: Grid, mask: Array) -> None:
    """Marks invalid and cloudy pixels of the scene classification in the mask (H, W)."""
    native, info = _checked(file)
    _check_cover(info, grid, band=file.band)
    classes = regrid(native, transform=info.transform, grid=grid, how="nearest", nodata=255)
    mask[np.isin(classes, CLOUD_CLASSES) & (mask == Mask.VALID)] = Mask.CLOUD
    mask[np.isin(classes, (*INVALID_CLASSES, 255))] = Mask.INVALID
