"""Gaofen products of level 1A: images in the sensor's own geometry, brought to the ground by their coefficients.

Where asked, the bands are sharpened: both images go to one grid at the panchromatic pixel size and to one whose pixels are a
whole number of these, on which they are compared.
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
from dithc.data.archives import scratch, unpack
from dithc.data.files import room_bytes
from dithc.data.grids import Grid, reproject_points
from dithc.data.ground import Heights, ortho_grid, orthorectify, read_heights
from dithc.data.pansharpen import F32, Mask, averaged, gsa, judgeable, reduced_resolution
from dithc.data.raster import RasterInfo, read_raster
from dithc.data.readers.rasters import Raw, as_chw
from dithc.data.registration import shift_between
from dithc.data.rpc import Rpc, check_covers, read_rpc, rpc_beside
from dithc.data.scene import Array, Place, Reason, Refused
from dithc.data.xml import Element, find_text, read_xml
from dithc.log import logger

PRODUCT = re.compile(r"((GF[126][A-D]?)_(PMS[12]?)_[EW][\d.]+_[NS][\d.]+_(\d{8})_L1A\d+)(?=[-_.]|$)")
"""Satellite, camera and day are in the name."""
MULTISPECTRAL = re.compile(r"-(?:MSS[12]?|MUX)\.tiff?$", re.IGNORECASE)
PANCHROMATIC = re.compile(r"-PAN[12]?\.tiff?$", re.IGNORECASE)
SIDECAR = re.compile(r"-(?:MSS[12]?|MUX|PAN[12]?)(?:\.xml|\.rpb|_rpc\.txt|\.tiff?\.msk)$", re.IGNORECASE)

CORNERS = ("TopLeft", "TopRight", "BottomRight", "BottomLeft")
FARTHEST_CORNER = 0.15
"""Of the image's side: 3,000 m of height seen from 20 degrees aside move a corner by 5 %."""
SHARPENING_BYTES = 12
"""Of a band and pixel: as stored, interpolated and sharpened in fp32, and what numpy makes in between."""
log = logger(__name__)


def product_of(path: Path) -> str | None:
    """The product that a file's name begins with; ids have ten digits or more."""
    found = PRODUCT.match(path.name)
    return None if found is None else found[1]


def is_archive(path: Path) -> bool:
    """Whether a file is named as a packed product."""
    return path.name.lower().endswith((".tar.gz", ".tgz")) and product_of(path) is not None


@contextmanager
def opened_product(path: Path, *, pan: bool) -> Iterator[Path]:
    """Yield the multispectral image of a raster or archive, unpacked temporarily, with the panchromatic image if `pan`.

    Raises:
        OSError, UserError: The archive is damaged, unsafe, or too large.
        Refused: It has no multispectral image.
    """
    if not is_archive(path):
        yield path
        return

    def wanted(name: str) -> bool:
        return bool(MULTISPECTRAL.search(name) or SIDECAR.search(name) or (pan and PANCHROMATIC.search(name)))

    with scratch(path) as folder:
        found = [one for one in unpack(path, folder, wanted=wanted) if MULTISPECTRAL.search(one.name)]
        if len(found) != 1:
            raise Refused(
                Reason.INCOMPLETE,
                "the archive does not hold one multispectral image",
                got=", ".join(one.name for one in found) or "none",
                expected=f"{product_of(path)}-MSS1.tiff or -MSS2.tiff",
                fix="download it again",
            )
        yield found[0]


class Orthorectifier:
    """Orthorectifies images of level 1A with one DEM, read once; raises UserError if the DEM is unusable."""

    def __init__(self, source: datasets.Gaofen2) -> None:
        self.source = source
        dem = None if source.dem is None else Path(source.dem)
        self.heights = read_heights(dem, height_m=source.height_m or 0.0)

    def __reduce__(self) -> tuple[type["Orthorectifier"], tuple[datasets.Gaofen2]]:
        return Orthorectifier, (self.source,)  # another process reads the DEM for itself

    def to_ground(
        self, path: Path, pixels: Array, info: RasterInfo, coefficients: Path, metadata: Element | None
    ) -> tuple[Raw, dict[str, Any]]:
        """The multispectral image (C, h, w) on a UTM grid of `gsd_m`, and what was done, for the table."""
        as_chw(pixels, bands=self.source.bands, layout="chw", alpha=info.alpha)
        if info.masked is not None:
            pixels[:, info.masked] = 0
        if info.nodata not in (None, 0):
            raise Refused(
                Reason.READ_ERROR,
                "an image of level 1A declares another value for no data than 0",
                got=f"{info.nodata:g}",
                expected="none, or 0: it would be interpolated into the pixels beside it",
                fix="take the product as it was delivered, or write 0 there (gdal_calc.py)",
            )
        rpc = _rpc(coefficients, info, metadata)
        facts: dict[str, Any] = {"orthorectified": self.said}
        if self.source.pansharpen == "none":
            grid = ortho_grid(rpc, shape=pixels.shape[1:], gsd_m=self.source.gsd_m, multiple=1, heights=self.heights)
            pixels = on_grid(path, pixels, rpc, grid=grid, heights=self.heights)
        else:
            pixels, measured, grid = self._sharpened(path, pixels, rpc, self.heights)
            facts |= measured
        return Raw(pixels=pixels, place=place_of(grid)), facts

    def _sharpened(self, path: Path, pixels: Array, rpc: Rpc, heights: Heights) -> tuple[Array, dict[str, Any], Grid]:
        """The image at the panchromatic pixel size (C, H, W), what was measured, and its grid."""
        pan, pan_rpc = _panchromatic(path, dtype=str(pixels.dtype))
        native_m = pixel_m(rpc)
        ratio = max(2, round(native_m / self.source.gsd_m))
        grid = ortho_grid(rpc, shape=pixels.shape[1:], gsd_m=self.source.gsd_m, multiple=ratio, heights=heights)
        check_memory(path, grid, bytes_each=SHARPENING_BYTES * len(pixels))
        fine_pan = on_grid(path, pan, pan_rpc, grid=grid, heights=heights)[0]
        fine = on_grid(path, pixels, rpc, grid=grid, heights=heights)
        coarse = on_grid(path, pixels, rpc, grid=coarser(grid, ratio), heights=heights).astype(np.float32)
        valid = fine.any(axis=0) & (fine_pan > 0)
        coarse_valid = coarse.any(axis=0) & (averaged(valid.astype(np.float32), ratio) == 1.0)
        if not coarse_valid.any():
            raise Refused(
                Reason.MISREGISTERED,
                "the multispectral and the panchromatic image have no place in common",
                got=f"{int(valid.sum())} pixels of both",
                expected="two images of one place",
                fix="look at the product's files: each has the coefficients of its own name",
            )
        float_pan = fine_pan.astype(np.float32)
        coarse_pan = averaged(float_pan, ratio)
        facts = self._registered(
            path, coarse, coarse_pan, coarse_valid, step_m=ratio * self.source.gsd_m, native_m=native_m
        )
        facts |= _judged(path, coarse, float_pan, coarse_valid, ratio=ratio)
        sharp = gsa(
            fine.astype(np.float32),
            float_pan,
            coarse_bands=coarse,
            coarse_pan=coarse_pan,
            valid=valid,
            coarse_valid=coarse_valid,
        )
        limits = np.iinfo(fine.dtype)
        return np.where(valid, np.clip(np.rint(sharp), 1, limits.max), 0).astype(fine.dtype), facts, grid

    def _registered(
        self, path: Path, bands: F32, pan: F32, valid: Mask, *, step_m: float, native_m: float
    ) -> dict[str, Any]:
        """How far the panchromatic image lies beside the bands, refused beyond `max_shift`; on a grid of `step_m`."""
        found = shift_between(bands.mean(axis=0, dtype=np.float64), pan.astype(np.float64), valid)
        if found is None:
            log.warning(f"{path.name}: too little is seen to tell whether the panchromatic image lies upon the bands")
            return {"pansharpened": "gsa"}
        east, south = found.right * step_m, found.down * step_m
        if np.hypot(east, south) > self.source.max_shift * native_m:
            raise Refused(
                Reason.MISREGISTERED,
                "the panchromatic image lies beside the multispectral one",
                got=f"{east:.2f} m to the east and {south:.2f} m to the south, in {found.windows} windows",
                expected=f"at most {self.source.max_shift:g} pixels of {native_m:.2f} m (`max_shift`)",
                fix="give a better `dem` or height (both cameras look from another side), use `pansharpen: none`, or raise "
                "`max_shift` if blurred edges do not matter",
            )
        return {"pansharpened": "gsa", "pan_shift_m": [east, south]}

    @property
    def said(self) -> str:
        """What the ground was taken for."""
        height = f"{self.source.height_m or 0.0:g} m"
        return height if self.source.dem is None else f"{Path(self.source.dem).name} + {height}"


def xml_beside(raster: Path) -> Path | None:
    """The metadata beside an image; None where there is none."""
    beside = (raster.with_suffix(suffix) for suffix in (".xml", ".XML"))
    return next((path for path in beside if os.path.lexists(path)), None)


def panchromatic_files(path: Path) -> list[Path]:
    """Return panchromatic image, coefficients and optional metadata of a product; raise Refused without exactly one of each."""
    name = MULTISPECTRAL.sub("", path.name)
    found = [
        one for one in sorted(path.parent.iterdir()) if PANCHROMATIC.sub("", one.name) == name and one.name != name
    ]
    coefficients = rpc_beside(found[0]) if len(found) == 1 else None
    if coefficients is None:
        raise Refused(
            Reason.INCOMPLETE,
            "there is nothing to sharpen the product with",
            got=", ".join(one.name for one in found) or f"no panchromatic image {name}-PAN....tiff",
            expected="one panchromatic image with its .rpb beside the multispectral one",
            fix="unpack the whole product, or set `pansharpen: none`",
        )
    metadata = xml_beside(found[0])
    return [found[0], coefficients] + ([] if metadata is None else [metadata])


def _panchromatic(path: Path, *, dtype: str) -> tuple[Array, Rpc]:
    """The other image of a product (1, h, w), of the same type, and its geometry."""
    image, coefficients, *metadata = panchromatic_files(path)
    pixels, info = read_raster(image)
    if info.count != 1 or info.dtype != dtype or info.nodata not in (None, 0):
        raise Refused(
            Reason.WRONG_DTYPE,
            "the panchromatic image is none",
            got=f"{info.count} bands of {info.dtype}, no data {info.nodata}",
            expected=f"one band of {dtype}, where 0 is no data",
            fix="unpack the product again",
        )
    if info.masked is not None:
        pixels[:, info.masked] = 0
    return pixels, _rpc(coefficients, info, read_xml(metadata[0]) if metadata else None)


def _judged(path: Path, bands: F32, pan: F32, valid: Mask, *, ratio: int) -> dict[str, Any]:
    """The error of sharpening where the truth is known, one step coarser: into the log and the table."""
    if not judgeable(valid, ratio):
        return {}
    sharp, plain = reduced_resolution(bands, pan, ratio=ratio, coarse_valid=valid)
    log.info(
        f"{path.name} sharpened at reduced resolution (ratio {ratio}): ERGAS {sharp.ergas:.2f}, spectral angle "
        f"{sharp.sam_degrees:.2f} degrees, Q {sharp.q:.3f}; interpolated alone {plain.ergas:.2f}, {plain.sam_degrees:.2f}, "
        f"{plain.q:.3f}"
    )
    return {"ergas": sharp.ergas, "sam_degrees": sharp.sam_degrees, "q": sharp.q}


def pixel_m(rpc: Rpc) -> float:
    """Side of a pixel on the ground in metres: the root of its area, in the middle of the image."""
    lines, samples = rpc.line_off + np.array([0.0, 1.0, 0.0]), rpc.samp_off + np.array([0.0, 0.0, 1.0])
    longitudes, latitudes = rpc.locate(lines, samples, np.full(3, rpc.height_off))
    xs, ys = reproject_points(longitudes.tolist(), latitudes.tolist(), source_epsg=4326, target_epsg=rpc.epsg)
    down, right = np.array([xs[1] - xs[0], ys[1] - ys[0]]), np.array([xs[2] - xs[0], ys[2] - ys[0]])
    return float(abs(down[0] * right[1] - down[1] * right[0]) ** 0.5)


def coarser(grid: Grid, ratio: int) -> Grid:
    """The grid of the same corner whose pixels are `ratio` by `ratio` of this one's."""
    a, b, c, d, e, f = grid.transform
    height, width = grid.shape
    return replace(grid, transform=(a * ratio, b, c, d, e * ratio, f), shape=(height // ratio, width // ratio))


def _rpc(path: Path, info: RasterInfo, metadata: Element | None) -> Rpc:
    """Coefficients of an image, after a look at what its metadata says of it."""
    rpc = read_rpc(path)
    check_covers(rpc, path, height=info.height, width=info.width)
    if metadata is not None:
        _check_size(metadata, height=info.height, width=info.width)
        _check_corners(rpc, metadata, height=info.height, width=info.width)
    return rpc


def _check_size(metadata: Element, *, height: int, width: int) -> None:
    """Raise Refused if the image has another size than its XML: a cut or padded image is elsewhere or incomplete."""
    told = [find_text(metadata, name) for name in ("HeightInPixels", "WidthInPixels")]
    if any(text and text != str(side) for text, side in zip(told, (height, width), strict=True)):
        raise _contradiction(
            got=f"an image of {height} x {width} pixels", expected=f"the {told[0]} x {told[1]} that its XML says"
        )


def _check_corners(rpc: Rpc, metadata: Element, *, height: int, width: int) -> None:
    """Raise Refused if coefficients and XML differ in the image's corners by more than hills explain: digits have no checksum."""
    told = [[find_text(metadata, f"{corner}{axis}") for corner in CORNERS] for axis in ("Longitude", "Latitude")]
    try:
        longitudes, latitudes = (np.array([float(text or "") for text in texts]) for texts in told)
    except ValueError:
        return  # an XML without them
    with np.errstate(all="ignore"):
        lines, samples = rpc.project(longitudes, latitudes, np.full(4, rpc.height_off))
    down, right = lines - np.array([0, 0, height, height]), samples - np.array([0, width, width, 0])
    far = float(np.hypot(down, right).max())
    if not far <= FARTHEST_CORNER * max(height, width):
        raise _contradiction(
            got=f"corners that lie {far:.0f} pixels apart in an image of {height} x {width}",
            expected=f"at most {FARTHEST_CORNER:.0%} of its side",
        )


def _contradiction(*, got: str, expected: str) -> Refused:
    return Refused(
        Reason.GRID_MISMATCH,
        "the files of the product contradict each other",
        got=got,
        expected=expected,
        fix="unpack or download the product again: one of its files is damaged or another product's",
    )


def on_grid(path: Path, pixels: Array, rpc: Rpc, *, grid: Grid, heights: Heights) -> Array:
    """An image on a grid (C, H, W), after a look at the memory."""
    check_memory(path, grid, bytes_each=len(pixels) * pixels.dtype.itemsize)
    return orthorectify(pixels, rpc, grid=grid, heights=heights)


def check_memory(path: Path, grid: Grid, *, bytes_each: int) -> None:
    """Raise Refused if a grid with `bytes_each` per pixel exceeds `room_bytes`."""
    height, width = grid.shape
    if height * width * bytes_each > room_bytes():
        raise Refused(
            Reason.READ_ERROR,
            "the product is too large on the ground for the memory here",
            got=f"{height} x {width} pixels of {grid.transform[0]:g} m: {height * width * bytes_each / 2**30:.1f} GiB",
            expected=f"at most {room_bytes() / 2**30:.1f} GiB: half of the memory that may be used here, and 32 GiB",
            fix="raise `gsd_m`, or stage it where there is more memory",
        )


def place_of(grid: Grid) -> Place:
    """Where a grid's pixels are."""
    return Place(gsd_m=grid.transform[0], crs=grid.crs, epsg=grid.epsg, transform=grid.transform)
