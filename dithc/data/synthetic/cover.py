"""Land cover classes, and the layers of a generated landscape."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dithc.data.synthetic.noise import F32, Grid, Mask

CoverMap = npt.NDArray[np.uint8]


class Cover(IntEnum):
    """Land cover class of a pixel, and row of the spectra table."""

    WATER = 0
    SAND = 1
    MEADOW = 2
    CROP_GREEN = 3
    CROP_YOUNG = 4
    CROP_RIPE = 5
    RAPESEED = 6
    STUBBLE = 7
    SOIL = 8
    HEDGE = 9
    BROADLEAF = 10
    CONIFER = 11
    ROAD = 12
    TRACK = 13
    ROOF_TILE = 14
    ROOF_GREY = 15
    ROOF_WHITE = 16
    GARDEN = 17


TREES = (Cover.HEDGE, Cover.BROADLEAF, Cover.CONIFER)
ROOFS = (Cover.ROOF_TILE, Cover.ROOF_GREY, Cover.ROOF_WHITE)
VEGETATION = (Cover.MEADOW, Cover.CROP_GREEN, Cover.CROP_YOUNG, Cover.RAPESEED, Cover.GARDEN, *TREES)


def is_any(cover: CoverMap, classes: tuple[Cover, ...]) -> Mask:
    """Return the mask (H, W) of the pixels with one of the classes."""
    table = np.zeros(len(Cover), dtype=bool)
    table[list(classes)] = True
    return table[cover]


@dataclass
class Landscape:
    """Landscape from above, north up; every layer is (H, W).

    Attributes:
        grid: Pixel grid.
        cover: `Cover` of each pixel.
        tone: Factor on the reflectance of all bands (parcel, texture), about 1.
        vigour: Health of the vegetation, about -1 to 1. It raises near infrared and lowers red.
        shade: Factor of direct light from slopes and shadows, 0 to about 1.3.
    """

    grid: Grid
    cover: CoverMap
    tone: F32
    vigour: F32
    shade: F32

    def window(self, top: int, bottom: int, left: int, right: int) -> "Landscape":
        """Return views of these rows and columns, clipped to the grid."""
        cut = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
        height, width = self.cover[cut].shape
        return Landscape(
            grid=Grid(height, width, self.grid.gsd),
            cover=self.cover[cut],
            tone=self.tone[cut],
            vigour=self.vigour[cut],
            shade=self.shade[cut],
        )
