"""Generated orthorectified Gaofen-2 multispectral scenes: a GeoTIFF file with 4 bands and an XML file."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import atomic_write
from dithc.data.grids import north_up, reproject_points
from dithc.data.raster import write_geotiff
from dithc.data.synthetic.cover import COUNTRYSIDE
from dithc.data.synthetic.landscape import SUN_AZIMUTH_DEGREES, SUN_ZENITH_DEGREES, grow
from dithc.data.synthetic.noise import F32, PixelGrid, generator
from dithc.data.synthetic.spectra import reflectance

BANDS = ("B", "G", "R", "NIR")
# The spectra are tabulated for Sentinel-2. These four bands are the nearest.
SENTINEL2_BANDS = ("B02", "B03", "B04", "B08")
MAX_DN = 1023
# Typical values of the camera: path reflectance of the atmosphere, solar irradiance (W m-2 um-1) and radiance per DN
# (W m-2 sr-1 um-1). They give digital numbers a realistic range and are not a calibration.
PATH_REFLECTANCE = (0.070, 0.042, 0.024, 0.012)
SOLAR_IRRADIANCE = (1940.0, 1850.0, 1540.0, 1090.0)
RADIANCE_PER_DN = (0.136, 0.174, 0.164, 0.179)
MAX_SCENES = 90
FIRST_PASS = datetime(2020, 5, 1, 11, 14, 27)


class GaofenScene:
    """Scene with place and date by `index`, and `size` pixels of `gsd` meters; `stem` is the name of its files."""

    epsg = 32650

    def __init__(self, index: int, size: int, gsd: float) -> None:
        self.index, self.size, self.gsd = index, size, gsd
        self.longitude, self.latitude = 116.0 + 0.4 * (index % 5), 40.0 + 0.4 * (index // 5)
        camera = 1 + index % 2
        self.sensor, self.time = f"PMS{camera}", FIRST_PASS + timedelta(days=5 * index)
        place = f"E{self.longitude:.1f}_N{self.latitude:.1f}"
        self.product = f"GF2_{self.sensor}_{place}_{self.time:%Y%m%d}_L1A{index + 1:010d}"
        self.stem = f"{self.product}-MSS{camera}"

    def left_top(self) -> tuple[float, float]:
        """Return the outer upper-left corner in UTM meters, a multiple of the pixel size."""
        (x,), (y,) = reproject_points([self.longitude], [self.latitude], source_epsg=4326, target_epsg=self.epsg)
        half = self.size * self.gsd / 2
        return round((x - half) / self.gsd) * self.gsd, round((y + half) / self.gsd) * self.gsd


def write_scene(folder: Path, scene: GaofenScene, *, seed: int) -> None:
    """Write `<stem>.tiff` and `<stem>.xml`; every second scene has a corner without data (DN 0)."""
    grid = PixelGrid(scene.size, scene.size, scene.gsd)
    land = grow(generator(seed, 1, scene.index, 0), grid, COUNTRYSIDE)
    image = reflectance(land, generator(seed, 1, scene.index, 1), bands=SENTINEL2_BANDS)  # (4, H, W)
    numbers = digital_numbers(image)
    if scene.index % 2 == 0:
        x, y = grid.coordinates()
        numbers[:, x / (0.18 * grid.extent_m) + y / (0.3 * grid.extent_m) < 1] = 0
    left, top = scene.left_top()
    folder.mkdir(parents=True, exist_ok=True)
    transform = north_up(left=left, top=top, gsd=scene.gsd)
    write_geotiff(folder / f"{scene.stem}.tiff", numbers, transform=transform, epsg=scene.epsg, nodata=0)
    atomic_write(folder / f"{scene.stem}.xml", metadata_text(metadata(scene, left=left, top=top)))


def digital_numbers(image: F32) -> npt.NDArray[np.uint16]:
    """Convert surface reflectance (4, H, W) to digital numbers of 10 bits, 1 to 1023."""
    sun = np.cos(np.deg2rad(SUN_ZENITH_DEGREES)) / np.pi
    scale = np.array([light * sun / gain for light, gain in zip(SOLAR_IRRADIANCE, RADIANCE_PER_DN, strict=True)])
    numbers = (image + np.array(PATH_REFLECTANCE)[:, None, None]) * scale[:, None, None]
    return np.asarray(np.clip(np.rint(numbers), 1, MAX_DN), dtype=np.uint16)


def metadata(scene: GaofenScene, *, left: float, top: float) -> dict[str, object]:
    side = scene.size * scene.gsd
    xs, ys = [left, left + side, left + side, left], [top, top, top - side, top - side]
    longitudes, latitudes = reproject_points(xs, ys, source_epsg=scene.epsg, target_epsg=4326)
    moment = f"{scene.time:%Y-%m-%d %H:%M:%S}"
    values: dict[str, object] = {
        "SatelliteID": "GF2",
        "SensorID": scene.sensor,
        "ReceiveTime": moment,
        "ProductID": scene.index + 1,
        "SceneID": 1_000_001 + scene.index,
        "ProductLevel": "LEVEL1A",
        "ProductFormat": "GEOTIFF",
        "Bands": "1,2,3,4",
        "PixelBits": 10,
        "WidthInPixels": scene.size,
        "HeightInPixels": scene.size,
        "ImageGSD": scene.gsd,
        "CloudPercent": 0,
        "CenterTime": moment,
        "SolarAzimuth": SUN_AZIMUTH_DEGREES,
        "SolarZenith": SUN_ZENITH_DEGREES,
        "SatelliteAzimuth": 98.0,
        "SatelliteZenith": 4.0,
        "EarthEllipsoid": "WGS84",
        "MapProjection": f"UTM{scene.epsg % 100}N",
    }
    corners = ("TopLeft", "TopRight", "BottomRight", "BottomLeft")
    for corner, latitude, longitude in zip(corners, latitudes, longitudes, strict=True):
        values |= {f"{corner}Latitude": f"{latitude:.6f}", f"{corner}Longitude": f"{longitude:.6f}"}
    return values


def metadata_text(values: dict[str, object]) -> str:
    rows = "".join(f"  <{name}>{value}</{name}>\n" for name, value in values.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<ProductMetaData>\n{rows}</ProductMetaData>\n'
