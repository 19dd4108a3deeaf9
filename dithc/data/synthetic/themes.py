"""Settings of the landscapes."""

from dataclasses import dataclass, replace

from dithc.data.synthetic.cover import Cover

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
    """Settings of one type of landscape.

    Attributes:
        name: Name in class tables.
        crops: Land cover of fields and its share.
        district_m, length_m, breadth_m: Size of districts, and of fields along and across the plow rows, in meters.
        hedged: Share of districts with hedges.
        forest: Share of the area with trees; `conifer` is the coniferous share of the trees.
        river_m: Width of the river in meters; 0 for no river.
        lake: Share of the area with lakes.
        towns_per_km2, town_m: Density of towns (at least one town if positive) and their radius in meters.
        relief_m: Standard deviation of the height in meters.
        highway: Whether a highway crosses the landscape.
    """

    name: str
    crops: Crops = SUMMER
    district_m: float = 900.0
    length_m: float = 260.0
    breadth_m: float = 130.0
    hedged: float = 0.35
    forest: float = 0.05
    conifer: float = 0.3
    river_m: float = 0.0
    lake: float = 0.0
    towns_per_km2: float = 0.0
    town_m: float = 420.0
    relief_m: float = 6.0
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
