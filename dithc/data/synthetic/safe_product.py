"""Which Sentinel-2 products are invented: level, baseline, place, date, names and files, as the real naming rules have it."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

# Level 2A delivers these bands per resolution (metres); B10 is not part of Level 2A. The first folder that a band's
# native resolution matches holds the measured pixels, the others hold copies.
BANDS_BY_RESOLUTION: dict[int, tuple[str, ...]] = {
    10: ("B02", "B03", "B04", "B08"),
    20: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B09", "B11", "B12"),
}
LEVEL1C_GSD_M = {
    **dict.fromkeys(("B02", "B03", "B04", "B08"), 10),
    **dict.fromkeys(("B05", "B06", "B07", "B8A", "B11", "B12"), 20),
    **dict.fromkeys(("B01", "B09", "B10"), 60),
}
# Squares of 100 km inside MGRS latitude band T (40 to 48 degrees north) and well inside each of three UTM zones.
ZONES = (50, 51, 52)
EASTINGS_KM = (300, 400, 500, 600)
NORTHINGS_KM = tuple(range(4500, 5300, 100))
MAX_PRODUCTS = len(ZONES) * len(EASTINGS_KM) * len(NORTHINGS_KM)
FIRST_PASS = datetime(2022, 4, 1, 3, 5, 51)
FIRST_LONG = datetime(2016, 4, 2, 3, 5, 51)
PROCESSING_SECONDS = 15_103
GRID_M = 60
OFFSET_BASELINE = "04.00"


class Variant(NamedTuple):
    """What a product is: its level, its processing baseline, and whether it has the long names of before December 2016."""

    level: Literal["L1C", "L2A"]
    baseline: str
    long_names: bool = False


VARIANTS = {
    "l2a": Variant("L2A", "04.00"),
    "l2a-5": Variant("L2A", "05.11"),
    "l2a-2": Variant("L2A", "02.14"),
    "l1c": Variant("L1C", "05.11"),
    "l1c-2": Variant("L1C", "02.09"),
    "l1c-granules": Variant("L1C", "02.02", long_names=True),
}
GRANULES = 2  # of a product with long names: they are adjacent squares


@dataclass(frozen=True)
class SafeProduct:
    """One granule of a product; `index` decides place and date, `size` is its side in pixels of 10 m.

    Attributes:
        index: of the granule; but for long names a product has one, so that it is that of the product.
        variant: what kind of product.
    """

    index: int
    size: int
    variant: Variant = VARIANTS["l2a"]

    @property
    def level(self) -> Literal["L1C", "L2A"]:
        return self.variant.level

    @property
    def baseline(self) -> str:
        return self.variant.baseline

    @property
    def offset(self) -> int:
        """Added to a digital number before it is divided by the quantification."""
        return -1000 if self.baseline >= OFFSET_BASELINE else 0

    @property
    def datatake(self) -> int:
        """Number of the pass that sees it: granules of a product are seen in one."""
        return self.index // GRANULES if self.variant.long_names else self.index

    @property
    def zone(self) -> int:
        return ZONES[self.index // (len(EASTINGS_KM) * len(NORTHINGS_KM))]

    @property
    def _corner_km(self) -> tuple[int, int]:
        row, column = divmod(self.index, len(EASTINGS_KM))
        return EASTINGS_KM[column], NORTHINGS_KM[row % len(NORTHINGS_KM)]

    @property
    def tile(self) -> str:
        """MGRS name: column letters repeat every three zones, row letters every 2,000 km, shifted in even zones."""
        east, north = (kilometres // 100 for kilometres in self._corner_km)
        column = ("STUVWXYZ", "ABCDEFGH", "JKLMNPQR")[self.zone % 3][east - 1]
        row = "ABCDEFGHJKLMNPQRSTUV"[(north + (5 if self.zone % 2 == 0 else 0)) % 20]
        return f"{self.zone}T{column}{row}"

    @property
    def left_top(self) -> tuple[float, float]:
        """Outer upper-left corner in UTM metres, on the 60 m lattice, as ESA places its tiles."""
        east, north = (kilometres * 1000 for kilometres in self._corner_km)
        return math.floor(east / GRID_M) * float(GRID_M), math.ceil((north + 100_000) / GRID_M) * float(GRID_M)

    @property
    def epsg(self) -> int:
        return 32600 + self.zone

    @property
    def satellite(self) -> str:
        if self.variant.long_names:
            return "S2A"  # the others were launched later
        flying = 3 if self.baseline >= "05.11" else 2
        return ("S2A", "S2B", "S2C")[self.index % flying]

    @property
    def sensed(self) -> datetime:
        return (FIRST_LONG if self.variant.long_names else FIRST_PASS) + timedelta(days=5 * self.datatake)

    @property
    def generated(self) -> datetime:
        return self.sensed + timedelta(seconds=PROCESSING_SECONDS)

    @property
    def relative_orbit(self) -> int:
        return 75

    @property
    def absolute_orbit(self) -> int:
        return (4_065 if self.variant.long_names else 35_389) + 71 * self.datatake

    @property
    def name(self) -> str:
        if self.variant.long_names:
            passed = f"V{stamp(self.sensed)}_{stamp(self.sensed)}"
            return f"S2A_OPER_PRD_MSI{self.level}_DTHC_{stamp(self.generated)}_R{self.relative_orbit:03d}_{passed}.SAFE"
        return (
            f"{self.satellite}_MSI{self.level}_{stamp(self.sensed)}_N{self.baseline.replace('.', '')}"
            f"_R{self.relative_orbit:03d}_T{self.tile}_{stamp(self.generated)}.SAFE"
        )

    @property
    def metadata(self) -> str:
        """Name of the product's metadata file."""
        if self.variant.long_names:
            return self.name.replace("PRD_MSI", "MTD_SAF").replace(".SAFE", ".xml")
        return f"MTD_MSI{self.level}.xml"

    @property
    def granule(self) -> str:
        if self.variant.long_names:
            return f"{self._long_name}_N{self.baseline}"
        return f"{self.level}_T{self.tile}_A{self.absolute_orbit:06d}_{stamp(self.sensed)}"

    @property
    def granule_metadata(self) -> str:
        """Path of the granule's metadata file inside the product."""
        name = self._long_name.replace("_MSI_", "_MTD_") if self.variant.long_names else "MTD_TL"
        return f"GRANULE/{self.granule}/{name}.xml"

    @property
    def _long_name(self) -> str:
        return f"S2A_OPER_MSI_{self.level}_TL_DTHC_{stamp(self.generated)}_A{self.absolute_orbit:06d}_T{self.tile}"

    def image(self, layer: str, resolution: int) -> str:
        """Path of an image inside the product, without its extension; `layer` is a band, SCL, AOT, WVP or TCI."""
        if self.variant.long_names:
            return f"GRANULE/{self.granule}/IMG_DATA/{self._long_name}_{layer}"
        file = f"T{self.tile}_{stamp(self.sensed)}_{layer}"
        if self.level == "L1C":
            return f"GRANULE/{self.granule}/IMG_DATA/{file}"
        return f"GRANULE/{self.granule}/IMG_DATA/R{resolution}m/{file}_{resolution}m"

    def quality(self, file: str) -> str:
        """Path of a file of the quality folder inside the product."""
        return f"GRANULE/{self.granule}/QI_DATA/{file}"


def stamp(moment: datetime) -> str:
    """A time as file names have it."""
    return moment.strftime("%Y%m%dT%H%M%S")


def layers(resolution: int) -> tuple[str, ...]:
    """All image layers of a resolution folder."""
    classes = ("SCL",) if resolution > 10 else ()
    return (*BANDS_BY_RESOLUTION[resolution], *classes, "AOT", "WVP", "TCI")
