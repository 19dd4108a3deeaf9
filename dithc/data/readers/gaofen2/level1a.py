"""Gaofen products of level 1A: images in sensor geometry, orthorectified by their RPCs.

Optional pansharpening resamples both images to one grid at the panchromatic pixel size, and to a grid with an integer
multiple of it, on which they are compared.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.image_quality import block_mean
from dithc.core.logging import get_logger
from dithc.data.archives import scratch_folder, unpack
from dithc.data.file_checks import check_memory
from dithc.data.grids import Grid, reproject_points
from dithc.data.raster import RasterInfo, read_raster
from dithc.data.readers.gaofen2.orthorectify import Heights, ortho_grid, orthorectify, read_heights
from dithc.data.readers.gaofen2.pansharpen import F32, Mask, gsa, reduced_resolution, shift_between
from dithc.data.readers.gaofen2.rpc import Rpc, check_covers, find_rpc, read_rpc
from dithc.data.readers.rasters import RasterPixels, as_chw
from dithc.data.scene import Array, Georeference, Reason, SceneRejectedError
from dithc.data.xml import Element, find_text, read_xml

PRODUCT = re.compile(r"((GF[126][A-D]?)_(PMS[12]?)_[EW][\d.]+_[NS][\d.]+_(\d{8})_L1A\d+)(?=[-_.]|$)")
"""Pattern of product names, which contain satellite, camera and day."""
MULTISPECTRAL = re.compile(r"-(?:MSS[12]?|MUX)\.tiff?$", re.IGNORECASE)
PANCHROMATIC = re.compile(r"-PAN[12]?\.tiff?$", re.IGNORECASE)
SIDECAR = re.compile(r"-(?:MSS[12]?|MUX|PAN[12]?)(?:\.xml|\.rpb|_rpc\.txt|\.tiff?\.msk)$", re.IGNORECASE)

CORNERS = ("TopLeft", "TopRight", "BottomRight", "BottomLeft")
FARTHEST_CORNER = 0.15
"""Largest error of a corner relative to the image side: 3,000 m of height seen at 20 degrees move a corner by 5%."""
SHARPENING_BYTES = 12
"""Bytes per band and pixel: stored, interpolated and sharpened in fp32, and temporaries of numpy."""
log = get_logger(__name__)


def product_of(path: Path) -> str | None:
    """Return the product at the start of a file name, or None; product identifiers have ten digits or more."""
    match = PRODUCT.match(path.name)
    return None if match is None else match[1]


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith((".tar.gz", ".tgz")) and product_of(path) is not None


@contextmanager
def open_product(path: Path, *, pan: bool) -> Iterator[Path]:
    """Yield the multispectral image of a raster or archive, unpacked temporarily, with the panchromatic image if `pan`."""
    if not is_archive(path):
        yield path
        return

    def is_required(name: str) -> bool:
        return bool(MULTISPECTRAL.search(name) or SIDECAR.search(name) or (pan and PANCHROMATIC.search(name)))

    with scratch_folder(path) as folder:
        images = [file for file in unpack(path, folder, wanted=is_required) if MULTISPECTRAL.search(file.name)]
        if len(images) != 1:
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                "the archive does not contain one multispectral image",
                got=", ".join(file.name for file in images) or "none",
                expected=f"{product_of(path)}-MSS1.tiff or -MSS2.tiff",
                fix="download it again",
            )
        yield images[0]


class Orthorectifier:
    """Orthorectifies images of level 1A with one DEM, read once; raises UserError if the DEM is unusable."""

    def __init__(self, source: datasets.Gaofen2Source) -> None:
        self.source = source
        dem = None if source.dem is None else Path(source.dem)
        self.heights = read_heights(dem, height_m=source.height_m or 0.0)

    def __reduce__(self) -> tuple[type["Orthorectifier"], tuple[datasets.Gaofen2Source]]:
        return Orthorectifier, (self.source,)  # another process reads the DEM itself

    def to_ground(
        self, path: Path, pixels: Array, info: RasterInfo, coefficients: Path, metadata: Element | None
    ) -> tuple[RasterPixels, dict[str, Any]]:
        """Return the multispectral image (C, h, w) on a UTM grid of `gsd_m`, and properties for the table."""
        as_chw(pixels, bands=self.source.bands, layout="chw", alpha=info.alpha)
        if info.masked is not None:
            pixels[:, info.masked] = 0
        if info.nodata not in (None, 0):
            raise SceneRejectedError(
                Reason.READ_ERROR,
                "an image of level 1A declares a no-data value other than 0",
                got=f"{info.nodata:g}",
                expected="none, or 0: other values would be interpolated into neighboring pixels",
                fix="use the product as delivered, or replace the value by 0 (gdal_calc.py)",
            )
        rpc = _rpc(coefficients, info, metadata)
        height, dem = f"{self.source.height_m or 0.0:g} m", self.source.dem
        properties: dict[str, Any] = {"orthorectified": height if dem is None else f"{Path(dem).name} + {height}"}
        if self.source.pansharpen == "none":
            grid = ortho_grid(rpc, shape=pixels.shape[1:], gsd_m=self.source.gsd_m, multiple=1, heights=self.heights)
            pixels = on_grid(path, pixels, rpc, grid=grid, heights=self.heights)
        else:
            pixels, measured, grid = self._pansharpen(path, pixels, rpc)
            properties |= measured
        georeference = Georeference(gsd_m=grid.transform[0], crs=grid.crs, epsg=grid.epsg, transform=grid.transform)
        return RasterPixels(pixels=pixels, place=georeference), properties

    def _pansharpen(self, path: Path, pixels: Array, rpc: Rpc) -> tuple[Array, dict[str, Any], Grid]:
        """Return the image at the panchromatic pixel size (C, H, W), measured properties, and its grid."""
        pan, pan_rpc = _panchromatic(path, dtype=str(pixels.dtype))
        native_m = pixel_m(rpc)
        ratio = max(2, round(native_m / self.source.gsd_m))
        grid = ortho_grid(rpc, shape=pixels.shape[1:], gsd_m=self.source.gsd_m, multiple=ratio, heights=self.heights)
        _check_memory(path, grid, bytes_each=SHARPENING_BYTES * len(pixels))
        fine_pan = on_grid(path, pan, pan_rpc, grid=grid, heights=self.heights)[0]
        fine = on_grid(path, pixels, rpc, grid=grid, heights=self.heights)
        a, b, c, d, e, f = grid.transform
        shape = grid.shape[0] // ratio, grid.shape[1] // ratio
        coarse_grid = replace(grid, transform=(a * ratio, b, c, d, e * ratio, f), shape=shape)
        coarse = on_grid(path, pixels, rpc, grid=coarse_grid, heights=self.heights).astype(np.float32)
        valid = fine.any(axis=0) & (fine_pan > 0)
        coarse_valid = coarse.any(axis=0) & (block_mean(valid.astype(np.float32), ratio) == 1.0)
        if not coarse_valid.any():
            raise SceneRejectedError(
                Reason.MISREGISTERED,
                "the multispectral and the panchromatic image do not overlap",
                got=f"{int(valid.sum())} pixels of both",
                expected="two images of one place",
                fix="check the product's files: each image needs the coefficient file of the same name",
            )
        float_pan = fine_pan.astype(np.float32)
        coarse_pan = block_mean(float_pan, ratio)
        properties = self._measure_shift(
            path, coarse, coarse_pan, coarse_valid, step_m=ratio * self.source.gsd_m, native_m=native_m
        )
        properties |= _measure_quality(path, coarse, float_pan, coarse_valid, ratio=ratio)
        sharp = gsa(
            fine.astype(np.float32),
            float_pan,
            coarse_bands=coarse,
            coarse_pan=coarse_pan,
            valid=valid,
            coarse_valid=coarse_valid,
        )
        limits = np.iinfo(fine.dtype)
        return np.where(valid, np.clip(np.rint(sharp), 1, limits.max), 0).astype(fine.dtype), properties, grid

    def _measure_shift(
        self, path: Path, bands: F32, pan: F32, valid: Mask, *, step_m: float, native_m: float
    ) -> dict[str, Any]:
        """Measure the panchromatic shift on a grid of `step_m`; raise SceneRejectedError beyond `max_shift`."""
        shift = shift_between(bands.mean(axis=0, dtype=np.float64), pan.astype(np.float64), valid)
        if shift is None:
            log.warning(f"{path.name}: too little detail to check the registration of the panchromatic image")
            return {"pansharpened": "gsa"}
        east, south = shift.right * step_m, shift.down * step_m
        if np.hypot(east, south) > self.source.max_shift * native_m:
            raise SceneRejectedError(
                Reason.MISREGISTERED,
                "the panchromatic image is not registered to the multispectral image",
                got=f"{east:.2f} m to the east and {south:.2f} m to the south, in {shift.windows} windows",
                expected=f"at most {self.source.max_shift:g} pixels of {native_m:.2f} m (`max_shift`)",
                fix="set a better `dem` or height (the view angles differ), use `pansharpen: none`, or raise "
                "`max_shift` if blurred edges do not matter",
            )
        return {"pansharpened": "gsa", "pan_shift_m": [east, south]}


def find_xml(raster: Path) -> Path | None:
    candidates = (raster.with_suffix(suffix) for suffix in (".xml", ".XML"))
    return next((path for path in candidates if os.path.lexists(path)), None)


def panchromatic_files(path: Path) -> list[Path]:
    """Return panchromatic image, coefficients and optional metadata of a product; SceneRejectedError if one is not unique."""
    name = MULTISPECTRAL.sub("", path.name)
    images = [
        file for file in sorted(path.parent.iterdir()) if PANCHROMATIC.sub("", file.name) == name and file.name != name
    ]
    coefficients = find_rpc(images[0]) if len(images) == 1 else None
    if coefficients is None:
        raise SceneRejectedError(
            Reason.INCOMPLETE,
            "the product cannot be pansharpened",
            got=", ".join(file.name for file in images) or f"no panchromatic image {name}-PAN....tiff",
            expected="one panchromatic image with its .rpb next to the multispectral image",
            fix="unpack the complete product, or set `pansharpen: none`",
        )
    metadata = find_xml(images[0])
    return [images[0], coefficients] + ([] if metadata is None else [metadata])


def _panchromatic(path: Path, *, dtype: str) -> tuple[Array, Rpc]:
    """Return the panchromatic image (1, h, w) of a product, of the same type, and its geometry."""
    image, coefficients, *metadata = panchromatic_files(path)
    pixels, info = read_raster(image)
    if info.count != 1 or info.dtype != dtype or info.nodata not in (None, 0):
        raise SceneRejectedError(
            Reason.WRONG_DTYPE,
            "the panchromatic image is invalid",
            got=f"{info.count} bands of {info.dtype}, no data {info.nodata}",
            expected=f"one band of {dtype}, with 0 as no data",
            fix="unpack the product again",
        )
    if info.masked is not None:
        pixels[:, info.masked] = 0
    return pixels, _rpc(coefficients, info, read_xml(metadata[0]) if metadata else None)


def _measure_quality(path: Path, bands: F32, pan: F32, valid: Mask, *, ratio: int) -> dict[str, Any]:
    """Log and return the quality of pansharpening at reduced resolution, where the truth is available."""
    measured = reduced_resolution(bands, pan, ratio=ratio, coarse_valid=valid)
    if measured is None:
        return {}
    sharp, plain = measured
    log.info(
        f"{path.name} sharpened at reduced resolution (ratio {ratio}): ERGAS {sharp.ergas:.2f}, spectral angle "
        f"{sharp.sam_degrees:.2f} degrees, Q {sharp.q:.3f}; interpolation only {plain.ergas:.2f}, {plain.sam_degrees:.2f}, "
        f"{plain.q:.3f}"
    )
    return sharp._asdict()


def pixel_m(rpc: Rpc) -> float:
    """Return the side of a pixel on the ground in meters: the root of its area at the image center."""
    lines, samples = rpc.line_off + np.array([0.0, 1.0, 0.0]), rpc.samp_off + np.array([0.0, 0.0, 1.0])
    longitudes, latitudes = rpc.locate(lines, samples, np.full(3, rpc.height_off))
    xs, ys = reproject_points(longitudes.tolist(), latitudes.tolist(), source_epsg=4326, target_epsg=rpc.epsg)
    down, right = np.array([xs[1] - xs[0], ys[1] - ys[0]]), np.array([xs[2] - xs[0], ys[2] - ys[0]])
    return float(abs(down[0] * right[1] - down[1] * right[0]) ** 0.5)


def _rpc(path: Path, info: RasterInfo, metadata: Element | None) -> Rpc:
    rpc = read_rpc(path)
    check_covers(rpc, path, height=info.height, width=info.width)
    if metadata is not None:
        _check_metadata(rpc, metadata, height=info.height, width=info.width)
    return rpc


def _check_metadata(rpc: Rpc, metadata: Element, *, height: int, width: int) -> None:
    """Raise SceneRejectedError if size and XML of the image differ, because cropping or padding moves pixels, or if its
    corners by coefficients and XML differ by more than terrain explains, because digits have no checksum."""
    sides = [find_text(metadata, name) for name in ("HeightInPixels", "WidthInPixels")]
    if any(text and text != str(side) for text, side in zip(sides, (height, width), strict=True)):
        raise _contradiction(
            got=f"an image of {height} x {width} pixels", expected=f"{sides[0]} x {sides[1]} as specified in its XML"
        )
    corners = [[find_text(metadata, f"{corner}{axis}") for corner in CORNERS] for axis in ("Longitude", "Latitude")]
    try:
        longitudes, latitudes = (np.array([float(text or "") for text in texts]) for texts in corners)
    except ValueError:
        return  # the XML has no corners
    with np.errstate(all="ignore"):
        lines, samples = rpc.project(longitudes, latitudes, np.full(4, rpc.height_off))
    down, right = lines - np.array([0, 0, height, height]), samples - np.array([0, width, width, 0])
    error_px = float(np.hypot(down, right).max())
    if not error_px <= FARTHEST_CORNER * max(height, width):
        raise _contradiction(
            got=f"corners that are {error_px:.0f} pixels apart in an image of {height} x {width}",
            expected=f"at most {FARTHEST_CORNER:.0%} of its side",
        )


def _contradiction(*, got: str, expected: str) -> SceneRejectedError:
    fix = "unpack or download the product again: one of its files is damaged or belongs to another product"
    title = "the files of the product contradict each other"
    return SceneRejectedError(Reason.GRID_MISMATCH, title, got=got, expected=expected, fix=fix)


def on_grid(path: Path, pixels: Array, rpc: Rpc, *, grid: Grid, heights: Heights) -> Array:
    _check_memory(path, grid, bytes_each=len(pixels) * pixels.dtype.itemsize)
    return orthorectify(pixels, rpc, grid=grid, heights=heights)


def _check_memory(path: Path, grid: Grid, *, bytes_each: int) -> None:
    height, width = grid.shape
    description = f"{height} x {width} pixels of {grid.transform[0]:g} m (raise `gsd_m` for fewer)"
    check_memory(path, height * width * bytes_each, description=description)
