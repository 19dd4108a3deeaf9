"""Land cover classes, the layers of a generated landscape, and the settings of its types."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dithc.data.synthetic.noise import F32, Mask, PixelGrid

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
    ROOF_GRAY = 15
    ROOF_WHITE = 16
    GARDEN = 17


TREES = (Cover.HEDGE, Cover.BROADLEAF, Cover.CONIFER)
ROOFS = (Cover.ROOF_TILE, Cover.ROOF_GRAY, Cover.ROOF_WHITE)
VEGETATION = (Cover.MEADOW, Cover.CROP_GREEN, Cover.CROP_YOUNG, Cover.RAPESEED, Cover.GARDEN, *TREES)


@dataclass
class Landscape:
    """Landscape from above, north up; every layer is (H, W)."""

    grid: PixelGrid
    cover: CoverMap
    tone: F32  # factor on the reflectance of all bands, about 1
    vigor: F32  # health of the vegetation, about -1 to 1: raises near infrared and lowers red
    shade: F32  # factor of direct light, 0 to about 1.3

    def window(self, top: int, bottom: int, left: int, right: int) -> "Landscape":
        """Return views of these rows and columns, clipped to the grid."""
        cut = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
        layers = {name: getattr(self, name)[cut] for name in ("cover", "tone", "vigor", "shade")}
        height, width = layers["cover"].shape
        return Landscape(grid=PixelGrid(height, width, self.grid.gsd), **layers)

    def paint(self, mask: Mask, cover: Cover, tone: F32 | float = 1.0) -> None:
        self.cover[mask] = cover
        self.tone[mask] = np.broadcast_to(tone, mask.shape)[mask]


Crops = tuple[tuple[Cover, float], ...]

SUMMER: Crops = (
    (Cover.CROP_GREEN, 0.28),
    (Cover.CROP_RIPE, 0.18),
    (Cover.MEADOW, 0.16),
    (Cover.SOIL, 0.14),
    (Cover.CROP_YOUNG, 0.12),
    (Cover.RAPESEED, 0.06),
    (Cover.STUBBLE, 0.06),
)
PASTURE: Crops = ((Cover.MEADOW, 0.75), (Cover.CROP_GREEN, 0.15), (Cover.CROP_YOUNG, 0.10))


@dataclass(frozen=True)
class Theme:
    """Settings of one type of landscape; the area of forest, conifers (of the forest) and lakes is a share."""

    name: str
    crops: Crops = SUMMER
    district_m: float = 900.0
    length_m: float = 260.0  # of a field along the plow rows; `breadth_m` across
    breadth_m: float = 130.0
    hedged: float = 0.35  # share of the districts
    forest: float = 0.05
    conifer: float = 0.3
    river_m: float = 0.0
    lake: float = 0.0
    towns_per_km2: float = 0.0  # at least one town if positive
    town_m: float = 420.0  # radius
    relief_m: float = 6.0  # standard deviation of the height
    highway: bool = False


COUNTRYSIDE = Theme(
    "countryside", forest=0.22, river_m=110.0, lake=0.015, towns_per_km2=0.12, relief_m=35.0, highway=True
)

# The classes of the image folder, in order.
THEMES: tuple[Theme, ...] = (
    Theme("fields", district_m=420.0, length_m=150.0, breadth_m=75.0, forest=0.02),
    replace(COUNTRYSIDE, name="river", river_m=80.0, forest=0.12, lake=0.0, towns_per_km2=0.0, highway=False),
    Theme("town", crops=PASTURE, towns_per_km2=0.5, town_m=480.0, forest=0.02),
    Theme("forest", crops=PASTURE, forest=0.88, relief_m=25.0),
)
