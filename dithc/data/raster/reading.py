"""Georeferenced rasters read back exactly.

Two drivers open files, chosen by a file's first bytes, and nothing but the file itself is read: GDAL would follow what stands
beside it or is written in it to other files and to the network.
"""

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.windows import Window

from dithc.data.files import check_room, open_regular
from dithc.data.grids import GeoTransform
from dithc.data.raster.codestream import check_codestream
from dithc.data.raster.tiff import check_blocks
from dithc.hardware import Limits
from dithc.log import UserError, problem

Driver = Literal["GTiff", "JP2OpenJPEG"]

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
SIDECAR_WORDS = (b"<SRS", b"<GeoTransform", b"<GCPList", b"<NoDataValue")
WORLD_FILES = (".tfw", ".tifw", ".tiffw", ".j2w", ".jp2w", ".jgw", ".wld")
SIDECAR_BYTES = 1 << 20
MOST_THREADS = 16


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
            with opened(path, driver) as source:
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
        raise OSError(
            f"its first bytes {start!r} are those of another format than {', '.join(dict.fromkeys(SIGNATURES.values()))}"
        )
    return driver


@contextmanager
def opened(path: Path, driver: Driver) -> Iterator[Any]:
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
        with opened(path, driver) as source:
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
