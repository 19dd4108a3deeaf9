"""Lossless writing of georeferenced rasters, with comparison of the written file."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.shutil
from rasterio.transform import Affine
from rasterio.windows import Window

from dithc.data.geometry import GeoTransform
from dithc.data.raster.labels import BandLabel, write_labels
from dithc.data.raster.reading import Driver, open_dataset, suppress_grid_warnings

# JPEG 2000 is lossless only with the reversible 5/3 wavelet, all quality layers, and no chroma subsampling.
CREATION_OPTIONS: dict[Driver, dict[str, str]] = {
    # By default GDAL tags three byte bands as red, green and blue, and a fourth as alpha.
    "GTiff": {"compress": "deflate", "predictor": "2", "photometric": "minisblack"},
    "JP2OpenJPEG": {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"},
}
COG_BLOCK, COG_SMALLEST_BLOCK = 512, 128  # pixels; GDAL's default and minimum
COG_OPTIONS = {"compress": "deflate", "predictor": "yes", "overviews": "auto"}
CACHE_MB = 64  # least block cache of GDAL for files written by rows


def write_geotiff(
    path: Path,
    array_chw: npt.NDArray[Any],
    *,
    transform: GeoTransform | None,
    epsg: int | None,
    nodata: float | None = None,
    driver: Driver = "GTiff",
) -> None:
    """Write one raster (C, H, W) losslessly to an existing folder, read it back and compare every pixel.

    GTiff stores all dtypes, JP2OpenJPEG uint8, uint16 and int16. transform and epsg are None without georeference.
    Raises OSError if the file cannot be written, or has other content.
    """
    count, height, width = array_chw.shape
    profile = {"count": count, "height": height, "width": width, "dtype": array_chw.dtype, "nodata": nodata}
    grid = _grid_options(None if epsg is None else f"EPSG:{epsg}", transform)
    try:
        with suppress_grid_warnings():
            with rasterio.open(path, "w", driver=driver, **profile, **grid, **CREATION_OPTIONS[driver]) as target:
                target.write(array_chw)
            with open_dataset(path, driver) as source:
                is_equal = np.array_equal(source.read(), array_chw, equal_nan=True)
    except rasterio.errors.RasterioError as error:
        raise OSError(f"cannot write {path} with GDAL driver {driver}: {error}") from error
    if not is_equal:
        raise OSError(f"{path} reads back other pixels than were written with {driver}: is the disk full or failing?")


def write_cog(
    path: Path,
    pixels: npt.NDArray[Any] | Iterable[npt.NDArray[Any]],
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    bands: Sequence[BandLabel],
    tags: Mapping[str, str],
    nodata: float | None = None,
    valid: npt.NDArray[np.bool_] | None = None,
    crs: str | None = None,
    transform: GeoTransform | None = None,
    resampling: Literal["cubic", "nearest"] = "cubic",
) -> None:
    """Write numbers of `shape` (C, H, W) as a cloud-optimized GeoTIFF losslessly, read it back and compare every pixel.

    `pixels` are an array, or strips (C, rows, W) of an image that is never complete in memory. Invalid pixels have the
    value `nodata`, or an array is masked by `valid` (H, W). `crs` is `EPSG:n` or WKT, set together with `transform`.
    `resampling` computes the overviews.
    Raises OSError if the file cannot be written, or has other content.
    """
    profile = dict(zip(("count", "height", "width"), shape, strict=True)) | {"dtype": dtype, "nodata": nodata}

    grid, options = _grid_options(crs, transform), COG_OPTIONS | {"overview_resampling": resampling}

    def describe(target: Any) -> None:
        target.update_tags(**tags)
        write_labels(target, bands)

    try:
        with suppress_grid_warnings():
            if isinstance(pixels, np.ndarray):
                is_equal = _write_array(path, pixels, profile | grid, describe, valid=valid, options=options)
            else:
                is_equal = _write_rows(path, pixels, profile | grid, describe, options=options)
    except OSError:
        raise
    except Exception as error:  # GDAL's exceptions at closing have no public base class
        raise OSError(f"cannot write {path}: {error}") from error
    if not is_equal:
        raise OSError(f"{path} reads back other pixels than were written: is the disk full or failing?")


def _write_array(
    path: Path,
    pixels: npt.NDArray[Any],
    profile: dict[str, Any],
    describe: Callable[[Any], None],
    *,
    valid: npt.NDArray[np.bool_] | None,
    options: dict[str, str],
) -> bool:
    # TIFF block sides are multiples of 16 pixels.
    block = min(COG_BLOCK, max(COG_SMALLEST_BLOCK, -(-max(pixels.shape[1:]) // 16) * 16))
    with rasterio.open(path, "w", driver="COG", **profile, **options, blocksize=str(block)) as target:
        target.write(pixels)
        if valid is not None:
            target.write_mask(valid)
        describe(target)
    with open_dataset(path, "GTiff") as source:
        is_equal = np.array_equal(source.read(), pixels, equal_nan=pixels.dtype.kind == "f")
        return is_equal and (valid is None or np.array_equal(source.dataset_mask() != 0, valid))


def _write_rows(
    path: Path,
    rows: Iterable[npt.NDArray[Any]],
    profile: dict[str, Any],
    describe: Callable[[Any], None],
    *,
    options: dict[str, str],
) -> bool:
    """Write strips to an uncompressed copy next to `path`, because GDAL's COG driver only converts existing files."""
    width, row_bytes = profile["width"], profile["width"] * profile["count"] * np.dtype(profile["dtype"]).itemsize
    cache_mb = max(CACHE_MB, 2 * COG_BLOCK * row_bytes >> 20)  # two rows of blocks
    plain = path.with_name(f"{path.name}.rows")
    blocks = {"tiled": True, "blockxsize": COG_BLOCK, "blockysize": COG_BLOCK, "interleave": "pixel", "bigtiff": "yes"}
    written, read_back = hashlib.sha256(), hashlib.sha256()
    heights: list[int] = []
    try:
        with rasterio.Env(GDAL_CACHEMAX=cache_mb):
            with rasterio.open(plain, "w", driver="GTiff", **profile, **blocks) as target:
                describe(target)
                for part in rows:
                    target.write(part, window=Window(0, sum(heights), width, part.shape[1]))
                    written.update(np.ascontiguousarray(part).data)
                    heights.append(part.shape[1])
            rasterio.shutil.copy(plain, path, driver="COG", **options, blocksize=str(COG_BLOCK), bigtiff="if_safer")
            with open_dataset(path, "GTiff") as source:
                for top, count in zip(accumulate(heights, initial=0), heights, strict=False):
                    read_back.update(source.read(window=Window(0, top, width, count)).data)
    finally:
        plain.unlink(missing_ok=True)
    return sum(heights) == profile["height"] and read_back.digest() == written.digest()


def _grid_options(crs: str | None, transform: GeoTransform | None) -> dict[str, Any]:
    if crs is None or transform is None:
        return {}
    return {"crs": crs, "transform": Affine(*transform)}
