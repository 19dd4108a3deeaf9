"""Files of a Sentinel-2 scene read and brought onto one grid, each after checks of what it says of itself."""

from collections.abc import Sequence
from math import copysign

import numpy as np

from dithc.data.raster import Grid, RasterInfo, read_raster, regrid
from dithc.data.readers.rasters import TOLERANCE, check_projected, square_pixel
from dithc.data.readers.safe_files import CLASSI, CLOUD_PROBABILITY, NATIVE_GSD_M, SCENE_CLASSIFICATION, BandFile
from dithc.data.scene import Array, Mask, Reason, Refused, stored_reflectance
from dithc.log import logger, problem

NODATA, SATURATED = 0, 65535
STRIP_ROWS = 1024
LAYERS = {SCENE_CLASSIFICATION: (1, "uint8"), CLOUD_PROBABILITY: (1, "uint8"), CLASSI: (3, "uint8")}
"""Number and type of the layers of masks; a band has one of uint16."""
log = logger(__name__)


def check_grid(bands: Sequence[str] | None, gsd_m: float) -> None:
    """Refuses a grid that is finer than every band of `bands`: all pixels would be invented.

    Raises:
        UserError: it is.
    """
    finest = min((NATIVE_GSD_M[band] for band in bands or ()), default=0.0)
    if finest > gsd_m:
        raise problem(
            "the grid is finer than every band that is asked for (`source.bands`)",
            got=f"`gsd_m: {gsd_m:g}` for {', '.join(bands or ())}",
            expected=f"`gsd_m` of {finest:g} or more",
            remedy=f"set `gsd_m: {finest:g}`, or take a finer band with them",
        )


def read_band(file: BandFile, grid: Grid, *, offset: float, per_unit: float, into: Array, mask: Array) -> None:
    """Reads a band onto the grid as stored reflectance (H, W), and marks in `mask` (H, W) where it is not valid.

    Args:
        file: of the band.
        grid: of the scene.
        offset: added to digital numbers.
        per_unit: digital numbers of reflectance 1.
        into: int16, written.
        mask: of `Mask`, changed.
    """
    (native,), info = read_file(file)
    native[native == SATURATED] = NODATA
    digital, invalid = on_grid(native, info, grid, band=file.band)
    for top in range(0, grid.shape[0], STRIP_ROWS):  # a strip at a time: the 32-bit sums of a whole band are large
        rows = slice(top, top + STRIP_ROWS)
        into[rows] = stored_reflectance(
            digital[rows], offset=offset, per_unit=per_unit, invalid=invalid[rows], what=f"a value of {file.band}"
        )
    mask[invalid] = Mask.INVALID


def read_file(file: BandFile) -> tuple[Array, RasterInfo]:
    """Reads a file of a product (c, h, w) after checks of type, system and pixel size."""
    pixels, info = read_raster(file.path)
    count, wanted = LAYERS.get(file.band, (1, "uint16"))
    if info.dtype != wanted or info.count != count:
        raise Refused(
            Reason.WRONG_DTYPE,
            f"{file.path.name} does not hold what its name says",
            got=f"{info.count} bands of {info.dtype}",
            expected=f"{count} of {wanted}",
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
    return pixels, info  # (c, h, w)


def common_grid(info: RasterInfo, *, gsd_m: float) -> Grid:
    """The grid of pixel size `gsd_m` with the extent of the finest band."""
    a, _, left, _, e, top = info.transform
    scale = abs(a) / gsd_m
    shape = (max(1, round(info.height * scale)), max(1, round(info.width * scale)))
    transform = (copysign(gsd_m, a), 0.0, left, 0.0, copysign(gsd_m, e), top)
    assert info.crs is not None
    return Grid(crs=info.crs, epsg=info.epsg, transform=transform, shape=shape)


def on_grid(native: Array, info: RasterInfo, grid: Grid, *, band: str) -> tuple[Array, Array]:
    """A band on the common grid (bilinear, no data left out) and where it has no data (nearest pixel, or nothing near).

    Raises:
        Refused: the band is in another system, or does not cover the grid.
    """
    check_cover(info, grid, band=band)
    if info.transform == grid.transform and native.shape == grid.shape:
        return native, native == NODATA
    digital = regrid(native, transform=info.transform, grid=grid, how="bilinear", nodata=NODATA)
    invalid = digital == NODATA
    if (native == NODATA).any():
        empty = (native == NODATA).astype(np.uint8)
        invalid |= regrid(empty, transform=info.transform, grid=grid, how="nearest", nodata=255) != 0
    return digital, invalid


def check_cover(info: RasterInfo, grid: Grid, *, band: str) -> None:
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
