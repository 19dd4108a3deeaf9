"""Reading of Sentinel-2 files and resampling to one grid, after checks of their metadata."""

from collections.abc import Generator, Iterator, Sequence
from math import copysign
from typing import Literal

import numpy as np

from dithc.core.logging import get_logger
from dithc.data.grids import Grid, regrid
from dithc.data.prefetch import ahead
from dithc.data.raster import RasterInfo, read_raster
from dithc.data.readers.rasters import TOLERANCE, check_projected, ground_gsd_m
from dithc.data.readers.sentinel2.safe_files import (
    CLASSI,
    CLOUD_PROBABILITY,
    SCENE_CLASSIFICATION,
    BandFile,
)
from dithc.data.scene import Array, Mask, Reason, SceneRejectedError, find_invalid, stored_reflectance

NODATA, SATURATED, ABSENT = 0, 65535, 255
STRIP_ROWS = 64
"""Rows per strip. For the width of a complete product, the sums of a strip (2.8 MB) fit into the caches; 512 rows take
three times as long.
"""
Decoded = tuple[Array, RasterInfo]
LAYERS = {SCENE_CLASSIFICATION: (1, "uint8"), CLOUD_PROBABILITY: (1, "uint8"), CLASSI: (3, "uint8")}
"""Number and type of the layers of masks; a band has one layer of uint16."""
Resampling = Literal["bilinear", "nearest"]
log = get_logger(__name__)


def write_reflectance(
    native: Array,
    info: RasterInfo,
    grid: Grid,
    *,
    band: str,
    how: Resampling,
    offset: float,
    per_unit: float,
    out: Array,
    mask: Array,
) -> None:
    """Write a band as stored reflectance int16 (H, W) to `out`, and mark invalid pixels in `mask` (H, W).

    `native` uint16 (h, w) is changed. `offset` is added to digital numbers; `per_unit` are digital numbers of
    reflectance 1.
    """
    np.copyto(native, np.uint16(NODATA), where=native == SATURATED)
    for rows, digital, invalid in on_grid(native, info, grid, band=band, how=how):
        out[rows] = stored_reflectance(
            digital, offset=offset, per_unit=per_unit, invalid=invalid, quantity=f"a value of {band}"
        )
        np.copyto(mask[rows], np.uint8(Mask.INVALID), where=invalid)


def decode_bands(files: Sequence[BandFile], known: dict[str, Decoded]) -> Generator[Decoded, None, None]:
    """Yield pixels (h, w) of files while another thread decodes the next; pops decoded bands (1, h, w) from `known`."""

    def native(file: BandFile) -> Decoded:
        (pixels,), info = known.pop(file.band) if file.band in known else read_file(file)
        return pixels, info

    return ahead(native(file) for file in files)


def read_file(file: BandFile) -> tuple[Array, RasterInfo]:
    """Read a file of a product (c, h, w) after checks of type, system and pixel size.

    Pixels that the file excludes become `NODATA`, in masks `ABSENT`.
    """
    pixels, info = read_raster(file.path)
    count, dtype = LAYERS.get(file.band, (1, "uint16"))
    if info.dtype != dtype or info.count != count:
        raise SceneRejectedError(
            Reason.WRONG_DTYPE,
            f"the content of {file.path.name} does not match its name",
            got=f"{info.count} bands of {info.dtype}",
            expected=f"{count} of {dtype}",
            fix="download the product again; its files were converted",
        )
    if info.crs is None or not info.has_grid:
        raise SceneRejectedError(
            Reason.CRS_MISSING,
            f"{file.path.name} has no coordinate reference system or no geotransform",
            got=f"system {info.crs}, transform {info.transform}",
            expected="the UTM zone of the product (EPSG:326xx, EPSG:327xx)",
            fix="download the product again; its files were converted",
        )
    check_projected(info)
    gsd = ground_gsd_m(info)
    if abs(gsd - file.gsd_m) > TOLERANCE * file.gsd_m:
        raise SceneRejectedError(
            Reason.RESOLUTION_MISMATCH,
            f"the pixel size of {file.path.name} does not match its name",
            got=f"{gsd:g} m ({info.width} x {info.height} pixels)",
            expected=f"{file.gsd_m:g} m",
            fix="use the original product; this one was resampled",
        )
    if info.driver != "JP2OpenJPEG" and file.path.suffix.lower() == ".jp2":
        log.warning(f"{file.path.name} is named as JPEG 2000, but is read as {info.driver}")
    if info.masked is not None or info.nodata not in (None, NODATA):
        fill = ABSENT if file.band in LAYERS else NODATA
        pixels[find_invalid(pixels, info.nodata, masked=info.masked)] = fill
    return pixels, info  # (c, h, w)


def common_grid(info: RasterInfo, *, gsd_m: float) -> Grid:
    """Return the grid of pixel size `gsd_m` with the extent of the finest band."""
    a, _, left, _, e, top = info.transform
    scale = abs(a) / gsd_m
    shape = (max(1, round(info.height * scale)), max(1, round(info.width * scale)))
    transform = (copysign(gsd_m, a), 0.0, left, 0.0, copysign(gsd_m, e), top)
    assert info.crs is not None
    return Grid(crs=info.crs, epsg=info.epsg, transform=transform, shape=shape)


def on_grid(
    native: Array, info: RasterInfo, grid: Grid, *, band: str, how: Resampling
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield strips of a band (h, w) on the common grid: rows, digital numbers (n, W), no-data mask (n, W).

    Bilinear interpolation excludes no data. A pixel has no data if the nearest of the band has none, or none is near.
    Raises SceneRejectedError if the band is in another system or does not cover the grid.
    """
    check_cover(info, grid, band=band)
    strips = [slice(top, min(top + STRIP_ROWS, grid.shape[0])) for top in range(0, grid.shape[0], STRIP_ROWS)]
    if info.transform == grid.transform and native.shape == grid.shape:
        for rows in strips:
            yield rows, native[rows], native[rows] == NODATA
        return
    if how == "bilinear" and grid.times((native.shape[0], native.shape[1]), info.transform) == 2:
        for rows in strips:
            digital = doubled(native, rows)
            yield rows, digital, digital == NODATA
        return
    digital = regrid(native, transform=info.transform, grid=grid, how=how, nodata=NODATA)
    empty = None
    if (native == NODATA).any():
        empty = regrid(
            (native == NODATA).view(np.uint8), transform=info.transform, grid=grid, how="nearest", nodata=255
        )
    for rows in strips:
        invalid = digital[rows] == NODATA
        yield rows, digital[rows], invalid if empty is None else invalid | (empty[rows] != 0)


def doubled(native: Array, rows: slice) -> Array:
    """Return `rows` (both ends even) of a uint16 band (h, w) on a grid of half the pixel size, (n, 2w).

    The result equals GDAL's bilinear warp bit for bit. The weights are 9, 3, 3 and 1 sixteenths of neighbors with data (not 0);
    halves are rounded up. No data stays where the nearest pixel has none.
    """
    first, last = rows.start // 2, rows.stop // 2
    edges = np.clip(np.arange(first - 1, last + 1), 0, len(native) - 1)
    part = native[edges]  # (n/2 + 2, w)
    sums = _bilinear_sums(part.astype(np.uint32))  # (n, 2w)
    digital = ((sums + 8) >> 4).astype(np.uint16)
    has_data = part != NODATA
    if has_data.all():
        return digital
    weights = _bilinear_sums(has_data.astype(np.uint8))  # (n, 2w), of 16
    nearest = has_data[1:-1].repeat(2, axis=0).repeat(2, axis=1)
    border = nearest & (weights != 16)
    digital[border] = np.floor(sums[border] / weights[border] + 0.5)
    return np.where(nearest, digital, np.uint16(NODATA))


def _bilinear_sums(part: Array) -> Array:
    """Return weighted sums, in sixteenths, of twice as many pixels (2n, 2w) of rows (n + 2, w).

    The first and last rows are only used as neighbors.
    """
    down = np.empty((2 * (len(part) - 2), part.shape[1]), part.dtype)
    middle = 3 * part[1:-1]
    np.add(middle, part[:-2], out=down[0::2])
    np.add(middle, part[2:], out=down[1::2])
    across = np.empty((len(down), 2 * part.shape[1]), part.dtype)
    middle = 3 * down
    np.add(middle[:, 1:], down[:, :-1], out=across[:, 2::2])
    np.add(middle[:, :-1], down[:, 1:], out=across[:, 1:-1:2])
    across[:, 0], across[:, -1] = middle[:, 0] + down[:, 0], middle[:, -1] + down[:, -1]
    return across


def check_cover(info: RasterInfo, grid: Grid, *, band: str) -> None:
    """Raise SceneRejectedError for another system, or if the area differs by more than half a pixel of the file or the grid."""
    if info.crs != grid.crs:
        fix = "download the product again; its files belong to different places"
        title = f"{band} is in another coordinate reference system than the finest band"
        raise SceneRejectedError(Reason.CRS_MIXED, title, got=info.crs, expected=grid.crs, fix=fix)
    extent = Grid(crs=grid.crs, epsg=grid.epsg, transform=info.transform, shape=(info.height, info.width))
    slack = max(abs(info.transform[0]), grid.transform[0]) / 2
    if not np.abs(np.subtract(extent.bounds, grid.bounds)).max() <= slack:  # true for NaN too
        got, expected = ("x {:g} to {:g}, y {:g} to {:g}".format(*area.bounds) for area in (extent, grid))
        raise SceneRejectedError(
            Reason.GRID_MISMATCH,
            f"{band} and the finest band do not cover the same area",
            got=got,
            expected=expected,
            fix="use the original product; the bands of this product were cut differently",
        )
