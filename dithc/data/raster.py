"""Where rasterio enters (and in `ground.py`): georeferenced rasters, written, read back exactly, and brought onto another grid.

Two drivers open files, chosen by a file's first bytes, and nothing but the file itself is read: GDAL would follow what stands
beside it or is written in it to other files and to the network.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, Resampling
from rasterio.transform import Affine
from rasterio.warp import reproject
from rasterio.warp import transform as warp_points
from rasterio.windows import Window

from dithc.data.codestream import check_codestream
from dithc.data.files import check_room, open_regular
from dithc.data.tiff import check_blocks
from dithc.hardware import Limits
from dithc.log import UserError, problem

Driver = Literal["GTiff", "JP2OpenJPEG"]
GeoTransform = tuple[float, float, float, float, float, float]

# JPEG 2000 is only lossless with the reversible 5/3 wavelet, every quality layer kept, and no chroma subsampling.
CREATION_OPTIONS: dict[Driver, dict[str, str]] = {
    "GTiff": {"compress": "deflate", "predictor": "2"},
    "JP2OpenJPEG": {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"},
}
COG_BLOCK, COG_SMALLEST_BLOCK = 512, 128  # pixels; GDAL's own, and the least that it takes
SIGNATURES: dict[bytes, Driver] = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP  ": "JP2OpenJPEG",
    b"\xff\x4f\xff\x51": "JP2OpenJPEG",
}
READING: dict[str, str | int] = {
    "GDAL_CACHEMAX": 128 << 20,  # bytes; else a twentieth of the machine, for blocks that are read once
    "GDAL_NUM_THREADS": "1",  # GDAL's own threads lose the errors of the tiles that they decode
    "GTIFF_IGNORE_READ_ERRORS": "NO",
    "GDAL_ERROR_ON_LIBJPEG_WARNING": "YES",
    "GDAL_PAM_ENABLED": "NO",  # this and the next two: no .aux.xml, .ovr, .msk or world file is looked for
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_GEOREF_SOURCES": "INTERNAL",
    "CPL_VSIL_CURL_ALLOWED_FILENAME": "none",
}
"""Settings under which files are read, whatever the environment says."""
NO_DRIVERS = "HTTP WMS WMTS WCS STACIT STACTA EEDA EEDAI PLMOSAIC DAAS VRT GTI MRF KMLSUPEROVERLAY"
"""Drivers that go to the network or to other files; read when GDAL registers its drivers, before the first file."""
os.environ["GDAL_SKIP"] = NO_DRIVERS
SIDECAR_WORDS = (b"<SRS", b"<GeoTransform", b"<GCPList", b"<NoDataValue")
WORLD_FILES = (".tfw", ".tifw", ".tiffw", ".j2w", ".jp2w", ".jgw", ".wld")
SIDECAR_BYTES = 1 << 20
MOST_THREADS = 16


def north_up(*, left: float, top: float, gsd: float) -> GeoTransform:
    """Affine coefficients (a, b, c, d, e, f) of a north-up grid with its upper-left corner at (left, top), in metres."""
    return (gsd, 0.0, left, 0.0, -gsd, top)


def reproject_points(
    first: list[float], second: list[float], *, source_epsg: int, target_epsg: int
) -> tuple[list[float], list[float]]:
    """Points from one coordinate system to another; always (x or longitude, y or latitude)."""
    xs, ys = warp_points(CRS.from_epsg(source_epsg), CRS.from_epsg(target_epsg), first, second)
    return list(xs), list(ys)


def degrees(
    xs: npt.NDArray[Any], ys: npt.NDArray[Any], *, crs: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Longitudes and latitudes (WGS84) of points (N,) of a system (`EPSG:n` or well-known text); NaN where there are none."""
    try:
        found = np.array(warp_points(_system(crs), _system("EPSG:4326"), xs.tolist(), ys.tolist()))
    except Exception:  # GDAL's own have no public ancestor: one of them is outside of the system
        found = np.full((2, len(xs)), np.nan)
    found[:, ~np.isfinite(found).all(0)] = np.nan
    return found[0], found[1]


@lru_cache(maxsize=256)
def _system(crs: str) -> CRS:
    return CRS.from_user_input(crs)


def write_geotiff(
    path: Path,
    array_chw: npt.NDArray[Any],
    *,
    transform: GeoTransform | None,
    epsg: int | None,
    nodata: float | None = None,
    driver: Driver = "GTiff",
    verify: bool = False,
) -> None:
    """Writes one raster losslessly; the caller chooses a temporary name or folder if it must appear atomically.

    Args:
        path: file to write; its folder exists.
        array_chw: (C, H, W), any dtype the driver stores losslessly (GTiff: all; JP2OpenJPEG: uint8, uint16, int16).
        transform: affine coefficients (a, b, c, d, e, f): x = a*col + b*row + c, y = d*col + e*row + f; None for an image
            without georeference.
        epsg: code of the coordinate reference system; None likewise.
        nodata: value written as the file's nodata; Sentinel-2 JP2 files carry none (their metadata says 0).
        verify: read the file back and compare every pixel, so that a full disk or a lossy codec cannot pass unnoticed.

    Raises:
        ValueError: array_chw has not three dimensions.
        OSError: the file cannot be written, or does not hold what was written.
    """
    if array_chw.ndim != 3:
        raise ValueError(f"write_geotiff takes an array (C, H, W), got the shape {array_chw.shape}; add the band axis")
    count, height, width = array_chw.shape
    profile = {"count": count, "height": height, "width": width, "dtype": array_chw.dtype, "nodata": nodata}
    place = {} if epsg is None or transform is None else {"crs": CRS.from_epsg(epsg), "transform": Affine(*transform)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path, "w", driver=driver, **profile, **place, **CREATION_OPTIONS[driver]) as target:
                target.write(array_chw)
            if verify:
                with rasterio.Env(**READING), rasterio.open(path, driver=driver) as source:
                    same = np.array_equal(source.read(), array_chw)
    except rasterio.errors.RasterioError as error:
        raise OSError(f"cannot write {path} with GDAL driver {driver}: {error}") from error
    if verify and not same:
        raise OSError(f"{path} reads back other pixels than were written with {driver}: is the disk full or failing?")


@dataclass(frozen=True, kw_only=True)
class BandLabel:
    """What a file says of one of its bands.

    Attributes:
        name: such as B04.
        units: of physical values.
        scale: physical = stored * scale + offset.
        offset: see `scale`.
        wavelength_nm: centre of the band, None where it is not known.
        shown: `red`, `green` or `blue` where it is displayed as that.
    """

    name: str
    units: str
    scale: float = 1.0
    offset: float = 0.0
    wavelength_nm: float | None = None
    shown: Literal["red", "green", "blue"] | None = None


def write_cog(
    path: Path,
    array_chw: npt.NDArray[Any],
    *,
    bands: Sequence[BandLabel],
    tags: Mapping[str, str],
    nodata: float | None = None,
    valid: npt.NDArray[np.bool_] | None = None,
    crs: str | None = None,
    transform: GeoTransform | None = None,
) -> None:
    """Writes a cloud-optimised GeoTIFF losslessly, reads it back and compares every pixel.

    Args:
        path: file to write; its folder exists.
        array_chw: (C, H, W), integers.
        bands: what is said of each band.
        tags: of the whole file.
        nodata: value that means no data; pixels that are not valid have it already.
        valid: (H, W), for files without such a value: written as the file's mask.
        crs: `EPSG:n` or well-known text; None for pixels that are nowhere.
        transform: affine coefficients, with `crs`.

    Raises:
        OSError: the file cannot be written, or does not hold what was written.
    """
    count, height, width = array_chw.shape
    block = min(
        COG_BLOCK, max(COG_SMALLEST_BLOCK, -(-max(height, width) // 16) * 16)
    )  # TIFF counts blocks in 16 pixels
    profile = {"count": count, "height": height, "width": width, "dtype": array_chw.dtype, "nodata": nodata}
    place = (
        {} if crs is None or transform is None else {"crs": CRS.from_user_input(crs), "transform": Affine(*transform)}
    )
    options = {"compress": "deflate", "predictor": "yes", "blocksize": str(block), "overviews": "auto"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path, "w", driver="COG", **profile, **place, **options) as target:
                target.write(array_chw)
                if valid is not None:
                    target.write_mask(valid)
                target.update_tags(**tags)
                _label(target, bands)
            with _opened(path, "GTiff") as source:
                same = np.array_equal(source.read(), array_chw)
                same &= valid is None or np.array_equal(source.dataset_mask() != 0, valid)
    except Exception as error:  # what GDAL says at closing has no public ancestor
        raise OSError(f"cannot write {path}: {error}") from error
    if not same:
        raise OSError(f"{path} reads back other pixels than were written: is the disk full or failing?")


def _label(target: Any, bands: Sequence[BandLabel]) -> None:
    target.descriptions = [band.name for band in bands]
    target.units = [band.units for band in bands]
    target.scales = [band.scale for band in bands]
    target.offsets = [band.offset for band in bands]
    target.colorinterp = [ColorInterp[band.shown or "undefined"] for band in bands]
    for number, band in enumerate(bands, start=1):
        if band.wavelength_nm is not None:
            target.update_tags(number, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{band.wavelength_nm / 1000:.6g}")


@dataclass(frozen=True, kw_only=True)
class RasterInfo:
    """What a raster file says of itself.

    Attributes:
        driver: GDAL driver that reads it; the file's name may say otherwise.
        crs: `EPSG:n`, or well-known text where the system has no code; None where the file has no system.
        epsg: the code, None without one.
        metric: whether the system is projected with the metre as its unit.
        transform: affine coefficients (a, b, c, d, e, f).
        nodata: value the file declares as no data.
        points: number of control points that stand in the place of a grid.
        unit: of the numbers, where the file says one.
    """

    driver: str
    count: int
    height: int
    width: int
    dtype: str
    crs: str | None
    epsg: int | None
    metric: bool
    transform: GeoTransform
    nodata: float | None
    points: int
    unit: str


def read_raster(path: Path) -> tuple[npt.NDArray[Any], RasterInfo]:
    """Reads a whole GeoTIFF or JPEG 2000 file, recognised by content, not by name.

    Only these two drivers are used: GDAL's SENTINEL2 driver gives zeros without an error where band files are missing, and
    others read documents that name servers.

    Returns:
        The pixels (C, H, W) in the file's dtype, and what the file says of itself.

    Raises:
        OSError: the file is cut short or of another format.
        UserError: it is no regular file, too large for the memory, or what it means stands in a file beside it.
    """
    driver = _driver(path)
    if driver == "JP2OpenJPEG":
        check_codestream(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with _opened(path, driver) as source:
                info = _info(source)
                block_bytes = _check_size(path, source)
                _check_sidecars(path, info)
                if driver == "GTiff":
                    check_blocks(path, block_bytes=block_bytes)
                blocks = [block for _, block in source.block_windows(1)] if driver == "JP2OpenJPEG" else []
                pixels = source.read() if len(blocks) < 2 else None
            return _decoded(path, driver, info, blocks) if pixels is None else pixels, info
    except (UserError, MemoryError):
        raise
    except Exception as error:  # whatever the decoder of a hostile file comes to
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise OSError(f"{str(error) or type(error).__name__}{cause}") from error


def _driver(path: Path) -> Driver:
    with open_regular(path) as file:
        start = file.read(8)
    driver = next((driver for signature, driver in SIGNATURES.items() if start.startswith(signature)), None)
    if driver is None:
        raise OSError(f"its first bytes {start!r} are those of another format than {', '.join(CREATION_OPTIONS)}")
    return driver


@contextmanager
def _opened(path: Path, driver: Driver) -> Iterator[Any]:
    """The file open for reading; the settings hold for this thread and as long."""
    with rasterio.Env(**READING), rasterio.open(os.path.abspath(path), driver=driver) as source:  # no name is a server
        yield source


def _check_size(path: Path, source: Any) -> int:
    """Judges what the header says before anything is allocated: the pixels, and the blocks in which they are decoded.

    Returns:
        Most bytes of a block of all bands.
    """
    if len(set(source.dtypes)) > 1:
        raise OSError(f"its bands are of several types: {', '.join(source.dtypes)}")
    height, width = (max(sides) for sides in zip((source.height, source.width), *source.block_shapes, strict=True))
    said = f"{source.count} x {source.height} x {source.width} of {source.dtypes[0]}"
    if (height, width) != (source.height, source.width):
        said += f" in blocks of {' x '.join(map(str, source.block_shapes[0]))}"
    pixel_bytes = source.count * np.dtype(source.dtypes[0]).itemsize
    check_room(path, height * width * pixel_bytes, said=said)
    return int(max(rows * columns for rows, columns in source.block_shapes) * pixel_bytes)


def _check_sidecars(path: Path, info: RasterInfo) -> None:
    """Refuses a file whose place or value for no data stands in another file, which is never read.

    Raises:
        UserError: it does.
    """
    aux = path.with_name(f"{path.name}.aux.xml")
    found = [path.with_suffix(suffix) for suffix in WORLD_FILES] if info.crs is None else []
    found = [beside for beside in found if beside.is_file()]
    if os.path.dirname(os.path.realpath(aux)) != os.path.dirname(os.path.realpath(path)):
        found.append(aux)  # a link that leads elsewhere; it is not opened
    elif aux.is_file():
        with aux.open("rb") as file:
            text = file.read(SIDECAR_BYTES)
        found += [aux] if len(text) == SIDECAR_BYTES or any(word in text for word in SIDECAR_WORDS) else []
    if found:
        raise problem(
            f"the place of {path} or its value for no data is said in a file beside it",
            got=found[0].name,
            expected="one file that says so itself; those beside it are not read",
            remedy="write them into one file (gdal_translate IN.tif OUT.tif), or remove the one beside it if it is wrong",
        )


def _decoded(path: Path, driver: Driver, info: RasterInfo, blocks: list[Window]) -> npt.NDArray[Any]:
    """Decodes blocks with threads of our own, each with the file open for itself; the first error of any ends it."""
    pixels = np.empty((info.count, info.height, info.width), info.dtype)  # (C, H, W)

    def decode(share: list[Window]) -> None:
        with _opened(path, driver) as source:
            for block in share:
                rows, columns = block.toslices()
                pixels[:, rows, columns] = source.read(window=block)

    threads = min(len(Limits.read().allowed_cpus), len(blocks), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(decode, blocks[first::threads]) for first in range(threads)]:
            done.result()
    return pixels


def _info(source: Any) -> RasterInfo:
    crs = source.crs if source.crs else None
    epsg = crs.to_epsg() if crs else None
    return RasterInfo(
        driver=source.driver,
        count=source.count,
        height=source.height,
        width=source.width,
        dtype=source.dtypes[0],
        crs=None if crs is None else f"EPSG:{epsg}" if epsg else crs.to_wkt(),
        epsg=epsg,
        metric=crs is not None and crs.is_projected and crs.linear_units_factor[1] == 1.0,
        transform=tuple(source.transform)[:6],
        nodata=source.nodata,
        points=len(source.gcps[0]),
        unit=(source.units[0] or "").strip(),
    )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of square pixels: its system (`EPSG:n` or well-known text), affine coefficients and shape (H, W)."""

    crs: str
    epsg: int | None
    transform: GeoTransform
    shape: tuple[int, int]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top."""
        a, _, c, _, e, f = self.transform
        (left, right), (bottom, top) = sorted((c, c + a * self.shape[1])), sorted((f, f + e * self.shape[0]))
        return left, right, bottom, top

    def times(self, shape: tuple[int, int], transform: GeoTransform) -> int:
        """How many of its pixels along each side make up one of a band (h, w), corner to corner; 0 if none do."""
        a, b, left, d, e, top = transform
        times = max(1, round(a / self.transform[0]))
        fine = (a / times, b, left, d, e / times, top)
        return times if fine == self.transform and (times * shape[0], times * shape[1]) == self.shape else 0


def regrid(
    band: npt.NDArray[Any],
    *,
    transform: GeoTransform,
    grid: Grid,
    how: Literal["bilinear", "nearest"],
    nodata: float,
) -> npt.NDArray[Any]:
    """Brings one band (h, w) onto another grid of the same coordinate reference system.

    `nodata` pixels take no part in the interpolation; a target pixel without any other neighbour becomes `nodata`.

    Returns:
        (H, W) of `grid.shape`, same dtype.
    """
    if how == "nearest" and (times := grid.times((band.shape[0], band.shape[1]), transform)):
        return band.repeat(times, axis=0).repeat(times, axis=1)  # (H, W), the same pixels in a tenth of the time
    target = np.full(grid.shape, nodata, dtype=band.dtype)
    reproject(
        band,
        target,
        src_transform=Affine(*transform),
        src_crs=grid.crs,
        src_nodata=nodata,
        dst_transform=Affine(*grid.transform),
        dst_crs=grid.crs,
        dst_nodata=nodata,
        resampling=Resampling[how],
    )
    return target  # (H, W)
