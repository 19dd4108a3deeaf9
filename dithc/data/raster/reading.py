"""Georeferenced rasters read back exactly.

The first bytes of a file select one of two drivers. GDAL opens single files only, because it would follow names in and
next to a raster to other files and to the network. `companions` finds the mask and the world file of a raster instead.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.windows import Window

from dithc.core.logging import UserError, get_logger, user_error
from dithc.data.file_checks import check_memory, open_regular
from dithc.data.geometry import GeoTransform
from dithc.data.raster.companions import check_aux, companion, read_world
from dithc.data.raster.jpeg2000_check import check_codestream
from dithc.data.raster.labels import BandLabel, read_labels
from dithc.data.raster.tiff_check import check_blocks
from dithc.engine.hardware import Limits

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
    "GDAL_CACHEMAX": 128 << 20,  # bytes; the default of a twentieth of the memory is useless for blocks read once
    "GDAL_NUM_THREADS": "1",  # GDAL's own threads lose the errors of the tiles that they decode
    "GTIFF_IGNORE_READ_ERRORS": "NO",
    "GDAL_ERROR_ON_LIBJPEG_WARNING": "YES",
    "GDAL_PAM_ENABLED": "NO",  # this and the next two: GDAL opens no .aux.xml, .ovr, .msk or world file
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_GEOREF_SOURCES": "PAM,INTERNAL",  # without PAM, JP2OpenJPEG returns uninitialized memory for a missing grid
    "CPL_VSIL_CURL_ALLOWED_FILENAME": "none",
}
"""GDAL settings for reading, which override the environment."""
MAX_THREADS = 16
MAX_PARTIAL = 0.5
"""Largest share of partly transparent pixels in an alpha band. By default GDAL tags a fourth byte band as alpha."""
MIN_BLOCK_BYTES = 1 << 20
NO_GRID = ((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 0.0, -1.0, 0.0))
"""The identity, which GDAL returns for rasters without geotransform, and the identity with rows from north to south."""
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RasterInfo:
    """Metadata of a raster file."""

    driver: str  # of the content; the suffix of the file may differ
    count: int  # without alpha bands
    height: int
    width: int
    dtype: str
    crs: str | None  # `EPSG:n`, or well-known text of a system without code
    epsg: int | None
    metric: bool  # whether the system is projected in meters
    transform: GeoTransform  # of the file or of its world file
    nodata: float | None  # None if a mask replaces it, as in GDAL
    points: int  # ground control points
    labels: tuple[BandLabel, ...]
    masked: npt.NDArray[np.bool_] | None = field(default=None, compare=False)  # (H, W), excluded by mask or alpha band
    alpha: int = 0  # alpha bands
    pages: int = 0  # further images, which are not read
    companions: tuple[Path, ...] = ()  # mask and world file, if they were read

    @property
    def has_grid(self) -> bool:
        """True if the file or its world file has a geotransform."""
        return self.transform not in NO_GRID


def read_raster(path: Path, *, bands: Sequence[str] = ()) -> tuple[npt.NDArray[Any], RasterInfo]:
    """Read the data bands (C, H, W) and metadata of a GeoTIFF or JPEG 2000 file, recognized by content.

    Other drivers are excluded: SENTINEL2 returns zeros without an error if band files are missing, and others open
    documents that name servers. `bands` are expected names, to recognize data in a band tagged as alpha. Raises OSError for
    a damaged file, UserError for a file that is not regular or too large.
    """
    driver = _driver(path)
    if driver == "JP2OpenJPEG":
        check_codestream(path)
    try:
        with suppress_grid_warnings(), open_dataset(path, driver) as source:
            block_bytes = _check_size(path, source)
            check_aux(path)
            if driver == "GTiff":
                check_blocks(path, block_bytes=block_bytes)
            return _load(path, driver, source, bands=bands)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Decoders raise many types for hostile files.
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise OSError(f"{str(error) or type(error).__name__}{cause}") from error


def read_window(path: Path, rows: slice, columns: slice, *, bands: Sequence[int] | None = None) -> npt.NDArray[Any]:
    """Read a window (C, h, w) of a GeoTIFF that dithc wrote; `bands` are numbered from 0, by default all."""
    numbers = None if bands is None else [band + 1 for band in bands]
    with suppress_grid_warnings(), open_dataset(path, "GTiff") as source:
        window: npt.NDArray[Any] = source.read(numbers, window=Window.from_slices(rows, columns))
    return window


def _load(path: Path, driver: Driver, source: Any, *, bands: Sequence[str]) -> tuple[npt.NDArray[Any], RasterInfo]:
    alpha = [number for number, color in enumerate(source.colorinterp, start=1) if color == ColorInterp.alpha]
    numbers = [*(number for number in source.indexes if number not in alpha), *alpha]
    blocks = [block for _, block in source.block_windows(1)] if driver == "JP2OpenJPEG" else []
    pixels = source.read(numbers) if len(blocks) < 2 else _decode(path, driver, source, numbers, blocks)
    if alpha and not _is_alpha(path, pixels[-1], number=alpha[-1], count=source.count, bands=bands):
        pixels, numbers, alpha = pixels[np.argsort(numbers)], sorted(numbers), []  # (C, H, W), in file order
    count, flags = len(numbers) - len(alpha), source.mask_flag_enums[numbers[0] - 1]
    valid = [pixels[count:] != 0] if alpha else []
    mask_file = companion(path, ".msk", ".MSK")
    masked = mask_file is not None
    if mask_file is not None:
        valid.append(_read_mask_file(path, mask_file, shape=source.shape))
    if flags != [MaskFlags.nodata] and not {MaskFlags.all_valid, MaskFlags.alpha} & {*flags}:
        masked = True
        valid.append(source.read_masks(numbers[: 1 if MaskFlags.per_dataset in flags else count]) != 0)
    crs = source.crs if source.crs else None
    epsg = crs.to_epsg() if crs else None
    transform: GeoTransform = tuple(source.transform)[:6]
    world = read_world(path) if transform in NO_GRID else None
    return pixels[:count], RasterInfo(
        driver=source.driver,
        count=count,
        height=source.height,
        width=source.width,
        dtype=source.dtypes[0],
        crs=None if crs is None else f"EPSG:{epsg}" if epsg else crs.to_wkt(),
        epsg=epsg,
        metric=crs is not None and crs.is_projected and crs.linear_units_factor[1] == 1.0,
        transform=transform if world is None else world[1],
        nodata=None if masked else source.nodata,
        points=len(source.gcps[0]),
        labels=read_labels(source, numbers[:count]),
        masked=np.logical_or.reduce(~np.concatenate(valid)) if valid else None,  # (H, W)
        alpha=len(alpha),
        pages=max(len(source.subdatasets) - 1, 0),
        companions=tuple(file for file in (mask_file, world and world[0]) if file is not None),
    )


def _is_alpha(path: Path, pixels: npt.NDArray[Any], *, number: int, count: int, bands: Sequence[str]) -> bool:
    """Return whether a band tagged as alpha is one; `bands` may declare data, which its values must confirm."""
    if len(bands) != count or bands[number - 1].casefold() in ("a", "alpha"):
        return True
    opaque = np.iinfo(pixels.dtype).max if pixels.dtype.kind in "iu" else 1
    partial = 1 - np.isin(pixels, (0, 1, 255, opaque)).mean()
    if partial > MAX_PARTIAL:
        log.info(
            f"reading band {number} of {path.name} as {bands[number - 1]}: it is tagged as alpha, but {partial:.0%} of its "
            "values are neither 0 nor opaque"
        )
    return bool(partial <= MAX_PARTIAL)


def _read_mask_file(path: Path, mask_file: Path, *, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return validity (1, H, W) or (C, H, W) from GDAL's mask in NAME.msk; UserError for other content or shape."""
    got = "not a mask of GDAL (INTERNAL_MASK_FLAGS_1)"
    try:
        with open_dataset(mask_file, _driver(mask_file)) as source:
            if "INTERNAL_MASK_FLAGS_1" in source.tags() and source.shape == shape:
                check_blocks(mask_file, block_bytes=_check_size(mask_file, source))
                validity: npt.NDArray[np.bool_] = source.read() != 0
                return validity
            if source.shape != shape:
                got = f"{source.height} x {source.width} pixels"
    except (OSError, rasterio.errors.RasterioError) as error:
        got = str(error)
    raise user_error(
        f"{mask_file} is not the mask of {path.name}",
        got=got,
        expected=f"a GeoTIFF mask of {shape[0]} x {shape[1]} pixels, as GDAL writes it next to a raster",
        fix="write the mask again (gdal_translate -mask), copy it again, or remove it",
    )


def _driver(path: Path) -> Driver:
    with open_regular(path) as file:
        start = file.read(8)
    driver = next((driver for signature, driver in SIGNATURES.items() if start.startswith(signature)), None)
    if driver is None:
        raise OSError(f"its first bytes {start!r} do not match {' or '.join(dict.fromkeys(SIGNATURES.values()))}")
    return driver


@contextmanager
def suppress_grid_warnings() -> Iterator[None]:
    """Suppress warnings about files without georeference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield


@contextmanager
def open_dataset(path: Path, driver: Driver) -> Iterator[Any]:
    """Open a file; the GDAL settings apply to this thread until it is closed."""
    name = os.path.abspath(path)  # excludes server names
    with rasterio.Env(**READING), rasterio.open(name, driver=driver) as source:
        yield source


def _check_size(path: Path, source: Any) -> int:
    """Return an upper limit of the bytes per block of all bands or a mask; UserError if memory is exceeded."""
    if len(set(source.dtypes)) > 1:
        raise OSError(f"its bands are of several types: {', '.join(source.dtypes)}")
    height, width = (max(sides) for sides in zip((source.height, source.width), *source.block_shapes, strict=True))
    shape_text = f"{source.count} x {source.height} x {source.width} of {source.dtypes[0]}"
    if (height, width) != (source.height, source.width):
        shape_text += f" in blocks of {' x '.join(map(str, source.block_shapes[0]))}"
    pixel_bytes = source.count * np.dtype(source.dtypes[0]).itemsize
    check_memory(path, height * width * pixel_bytes, description=shape_text)
    block_pixels = max(rows * columns for rows, columns in source.block_shapes)
    return int(max(block_pixels * pixel_bytes, height * width, MIN_BLOCK_BYTES))


def _decode(path: Path, driver: Driver, source: Any, numbers: list[int], blocks: list[Window]) -> npt.NDArray[Any]:
    pixels = np.empty((len(numbers), source.height, source.width), source.dtypes[0])  # (C, H, W)

    def decode(share: list[Window]) -> None:
        with open_dataset(path, driver) as part:
            for block in share:
                rows, columns = block.toslices()
                pixels[:, rows, columns] = part.read(numbers, window=block)

    threads = min(len(Limits.read().allowed_cpus), len(blocks), MAX_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(decode, blocks[first::threads]) for first in range(threads)]:
            future.result()
    return pixels
