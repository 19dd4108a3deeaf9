"""Which Sentinel-2 products are invented: their place, date, names and files, as the real naming rules have it."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

# Level 2A delivers these bands per resolution (metres); B10 is not part of Level 2A. The first folder that a band's
# native resolution matches holds the measured pixels, the others hold copies.
BANDS_BY_RESOLUTION: dict[int, tuple[str, ...]] = {
    10: ("B02", "B03", "B04", "B08"),
    20: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B09", "B11", "B12"),
}
# Squares of 100 km inside MGRS latitude band T (40 to 48 degrees north) and well inside each of three UTM zones.
ZONES = (50, 51, 52)
EASTINGS_KM = (300, 400, 500, 600)
NORTHINGS_KM = tuple(range(4500, 5300, 100))
MAX_PRODUCTS = len(ZONES) * len(EASTINGS_KM) * len(NORTHINGS_KM)
FIRST_PASS = datetime(2022, 4, 1, 3, 5, 51)
PROCESSING_SECONDS = 15_103
GRID_M = 60


@dataclass(frozen=True)
class SafeProduct:
    """One Level 2A product; `index` decides place and date, `size` is its side in pixels of 10 m."""

    index: int
    size: int

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
        return "S2A" if self.index % 2 == 0 else "S2B"

    @property
    def sensed(self) -> datetime:
        return FIRST_PASS + timedelta(days=5 * self.index)

    @property
    def generated(self) -> datetime:
        return self.sensed + timedelta(seconds=PROCESSING_SECONDS)

    @property
    def relative_orbit(self) -> int:
        return 75

    @property
    def absolute_orbit(self) -> int:
        return 35_389 + 71 * self.index

    @property
    def name(self) -> str:
        return (
            f"{self.satellite}_MSIL2A_{stamp(self.sensed)}_N0400_R{self.relative_orbit:03d}"
            f"_T{self.tile}_{stamp(self.generated)}.SAFE"
        )

    @property
    def granule(self) -> str:
        return f"L2A_T{self.tile}_A{self.absolute_orbit:06d}_{stamp(self.sensed)}"

    def image(self, layer: str, resolution: int) -> str:
        """Path of an image inside the product, without its extension; `layer` is a band, SCL, AOT, WVP or TCI."""
        file = f"T{self.tile}_{stamp(self.sensed)}_{layer}_{resolution}m"
        return f"GRANULE/{self.granule}/IMG_DATA/R{resolution}m/{file}"

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
