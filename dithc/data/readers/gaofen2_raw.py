"""Gaofen products of level 1A: images in the sensor's own geometry, brought to the ground by their coefficients."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.data.files import check_room
from dithc.data.ground import Heights, opened_heights, ortho_grid, orthorectify
from dithc.data.raster import Grid, RasterInfo
from dithc.data.readers.rasters import Raw, as_chw
from dithc.data.rpc import Rpc, check_covers, read_rpc
from dithc.data.scene import Array, Place, Reason, Refused
from dithc.data.tarball import unpack

PRODUCT = re.compile(r"(GF[126][A-D]?_PMS[12]?_[EW][\d.]+_[NS][\d.]+_\d{8}_L1A\d+)(?=[-_.]|$)")
MULTISPECTRAL = re.compile(r"-(?:MSS[12]?|MUX)\.tiff?$", re.IGNORECASE)
PANCHROMATIC = re.compile(r"-PAN[12]?\.tiff?$", re.IGNORECASE)
SIDECAR = re.compile(r"-(?:MSS[12]?|MUX|PAN[12]?)(?:\.xml|\.rpb|_rpc\.txt)$", re.IGNORECASE)


def product_of(path: Path) -> str | None:
    """The product that a file's name begins with; ids have ten digits or more."""
    found = PRODUCT.match(path.name)
    return None if found is None else found[1]


def is_archive(path: Path) -> bool:
    """Whether a file is named as a packed product."""
    return path.name.lower().endswith((".tar.gz", ".tgz")) and product_of(path) is not None


@contextmanager
def opened_product(path: Path, *, pan: bool) -> Iterator[Path]:
    """The multispectral image of a file: itself, or unpacked from an archive for as long as it is open.

    Args:
        path: a raster, or an archive named as a product.
        pan: whether the panchromatic image is unpacked as well.

    Raises:
        OSError, UserError: the archive is damaged, hostile, or does not fit here.
        Refused: it holds no multispectral image.
    """
    if not is_archive(path):
        yield path
        return

    def wanted(name: str) -> bool:
        return bool(MULTISPECTRAL.search(name) or SIDECAR.search(name) or (pan and PANCHROMATIC.search(name)))

    with TemporaryDirectory(prefix="dithc-") as folder:
        found = [one for one in unpack(path, Path(folder), wanted=wanted) if MULTISPECTRAL.search(one.name)]
        if len(found) != 1:
            raise Refused(
                Reason.INCOMPLETE,
                "the archive does not hold one multispectral image",
                got=", ".join(one.name for one in found) or "none",
                expected=f"{product_of(path)}-MSS1.tiff or -MSS2.tiff",
                remedy="download it again",
            )
        yield found[0]


class Orthorectifier:
    """Brings images of level 1A to the ground as a data set's settings say; keeps the DEM open."""

    def __init__(self, source: datasets.Gaofen2) -> None:
        self.source = source

    def to_ground(self, path: Path, pixels: Array, info: RasterInfo, coefficients: Path) -> tuple[Raw, dict[str, Any]]:
        """The multispectral image (C, h, w) on a UTM grid of `gsd_m`, and what was done, for the table."""
        as_chw(pixels, bands=self.source.bands, layout="chw")
        rpc = _rpc(coefficients, info)
        with self._heights() as heights:
            grid = ortho_grid(
                rpc, shape=(info.height, info.width), gsd_m=self.source.gsd_m, multiple=1, heights=heights
            )
            pixels = on_grid(path, pixels, rpc, grid=grid, heights=heights)
        return Raw(pixels=pixels, place=place_of(grid), nodata=None), {"orthorectified": self.said}

    def _heights(self) -> Any:
        dem = None if self.source.dem is None else Path(self.source.dem)
        return opened_heights(dem, height_m=self.source.height_m or 0.0)

    @property
    def said(self) -> str:
        """What the ground was taken for."""
        height = f"{self.source.height_m or 0.0:g} m"
        return height if self.source.dem is None else f"{Path(self.source.dem).name} + {height}"


def _rpc(path: Path, info: RasterInfo) -> Rpc:
    rpc = read_rpc(path)
    check_covers(rpc, path, height=info.height, width=info.width)
    return rpc


def on_grid(path: Path, pixels: Array, rpc: Rpc, *, grid: Grid, heights: Heights) -> Array:
    """An image on a grid (C, H, W), after a look at the memory."""
    height, width = grid.shape
    said = f"{len(pixels)} x {height} x {width} of {pixels.dtype} on the ground"
    check_room(path, len(pixels) * height * width * pixels.dtype.itemsize, said=said)
    return np.ascontiguousarray(orthorectify(pixels, rpc, grid=grid, heights=heights))


def place_of(grid: Grid) -> Place:
    """Where a grid's pixels are."""
    return Place(gsd_m=grid.transform[0], crs=grid.crs, epsg=grid.epsg, transform=grid.transform)
