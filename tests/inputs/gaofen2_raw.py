"""Generator of Gaofen-2 products of level 1A: images of both cameras in sensor geometry, with known ground truth.

Land and terrain are generated on the ground. A camera with an affine and quadratic RPC has an oblique view, which
displaces a hill by pixels. Every second product is an archive `<product>.tar.gz`. The terrain is written as a DEM.
"""

import gzip
import io
import re
import tarfile
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.ndimage

from dithc.data.grids import north_up, reproject_points
from dithc.data.raster import write_geotiff
from dithc.data.readers.gaofen2.rpc import F64, TERMS, Rpc
from dithc.data.synthetic import gaofen2
from dithc.data.synthetic.cover import COUNTRYSIDE
from dithc.data.synthetic.landscape import SUN_ZENITH_DEGREES, grow
from dithc.data.synthetic.noise import F32, PixelGrid, fractal, generator
from dithc.data.synthetic.spectra import reflectance

RATIO = 4
"""Pixels of the panchromatic camera along one of the multispectral."""
YAW = 0.21
SIDEWAYS = 0.2
"""Metres that a point moves across the track for each metre of its height: a view of 11 degrees from the vertical."""
BEND = {7: 2e-3, 4: 1.5e-3, 8: -1e-3, 5: 4e-4}
"""Coefficients of the quadratic terms of RPC00B: up to two thousandths of the image's half side."""
BASE_M, RELIEF_M, HEIGHT_SCALE_M = 120.0, 35.0, 500.0
DEM_GSD_M = 10.0
MARGIN = 1.5
"""Side of the land, in sides of the image: the camera is turned, and hills are seen from the side."""
HEIGHT_STEPS = 6
PAN_SHARE = (0.2, 0.3, 0.25, 0.25)
PAN_LIGHT, PAN_RADIANCE_PER_DN, PAN_AIR = 1360.0, 0.182, 0.035  # as in `gaofen2`: typical sizes, no calibration


@dataclass(frozen=True)
class Terrain:
    """Heights (H, W) on a UTM grid; between pixel centres they are bilinear, as GDAL takes a DEM."""

    heights: F32
    left: float
    top: float

    def heights_at(self, x: F64, y: F64) -> F64:
        """Heights at points in UTM metres."""
        rows, columns = (self.top - y) / DEM_GSD_M - 0.5, (x - self.left) / DEM_GSD_M - 0.5
        found = scipy.ndimage.map_coordinates(self.heights, [rows, columns], order=1, mode="nearest")
        return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True)
class RawProduct:
    """One product of a multispectral image of `size` pixels of `gsd` metres, and what it shows."""

    scene: gaofen2.GaofenScene
    seed: int

    @cached_property
    def corner(self) -> tuple[float, float]:
        """Outer upper-left corner of land and terrain in UTM metres."""
        scene = self.scene
        (x,), (y,) = reproject_points([scene.longitude], [scene.latitude], source_epsg=4326, target_epsg=scene.epsg)
        half = MARGIN * scene.size * scene.gsd / 2
        return round((x - half) / DEM_GSD_M) * DEM_GSD_M, round((y + half) / DEM_GSD_M) * DEM_GSD_M

    @cached_property
    def terrain(self) -> Terrain:
        """Return the terrain of the complete land."""
        side = int(np.ceil(MARGIN * self.scene.size * self.scene.gsd / DEM_GSD_M)) + 1
        grid = PixelGrid(side, side, DEM_GSD_M)
        hills = fractal(generator(self.seed, 4, self.scene.index, 2), grid, largest_m=900.0, slope=2.8)
        return Terrain(hills * np.float32(RELIEF_M) + np.float32(BASE_M), *self.corner)

    @cached_property
    def land(self) -> F32:
        """Reflectance (4, H, W) of the land at the panchromatic pixel size, north up from `corner`."""
        gsd = self.scene.gsd / RATIO
        side = int(MARGIN * self.scene.size * RATIO)
        land = grow(generator(self.seed, 4, self.scene.index, 0), PixelGrid(side, side, gsd), COUNTRYSIDE)
        return reflectance(land, generator(self.seed, 4, self.scene.index, 1), bands=gaofen2.SENTINEL2_BANDS)

    def rpc(self, *, pan: bool) -> Rpc:
        """The geometry of one of the two images; a multispectral pixel is the square of the panchromatic ones within it."""
        half_m = self.scene.size * self.scene.gsd / 2
        pixels = self.scene.size * (RATIO if pan else 1)
        line, sample = np.zeros(TERMS), np.zeros(TERMS)
        line[1:3] = -np.sin(YAW), -np.cos(YAW)
        sample[1:4] = np.cos(YAW), -np.sin(YAW), SIDEWAYS * HEIGHT_SCALE_M / half_m
        for term, amount in BEND.items():
            line[term], sample[term] = amount, -amount
        denominator = (1.0, *[0.0] * (TERMS - 1))
        latitude = np.deg2rad(self.scene.latitude)
        return Rpc(
            line_off=(pixels - 1) / 2,
            samp_off=(pixels - 1) / 2,
            lat_off=self.scene.latitude,
            long_off=self.scene.longitude,
            height_off=BASE_M,
            line_scale=pixels / 2,
            samp_scale=pixels / 2,
            lat_scale=half_m / 111_132.0,
            long_scale=half_m / (111_320.0 * float(np.cos(latitude))),
            height_scale=HEIGHT_SCALE_M,
            line_num_coeff=tuple(line.tolist()),
            line_den_coeff=denominator,
            samp_num_coeff=tuple(sample.tolist()),
            samp_den_coeff=denominator,
        )

    def ground_points(self, lines: F64, samples: F64) -> tuple[F64, F64]:
        """Return the UTM coordinates in meters on the terrain that panchromatic pixels view; both (h, w)."""
        rpc, height = self.rpc(pan=True), np.full(lines.shape, BASE_M)
        for _ in range(HEIGHT_STEPS):
            longitude, latitude = rpc.locate(lines, samples, height)
            xs, ys = reproject_points(
                longitude.ravel().tolist(), latitude.ravel().tolist(), source_epsg=4326, target_epsg=self.scene.epsg
            )
            x, y = np.reshape(xs, lines.shape), np.reshape(ys, lines.shape)
            height = self.terrain.heights_at(x, y)
        return x, y

    def sensor_image(self) -> F32:
        """Reflectance (4, h, w) in the sensor's geometry at the panchromatic pixel size, before either camera."""
        side, gsd, (left, top) = self.scene.size * RATIO, self.scene.gsd / RATIO, self.corner
        x, y = self.ground_points(*np.mgrid[0:side, 0:side].astype(np.float64))
        coordinates = [(top - y) / gsd - 0.5, (x - left) / gsd - 0.5]
        return np.stack([scipy.ndimage.map_coordinates(land, coordinates, order=1) for land in self.land])


def write_products(folder: Path) -> None:
    """Write two products of 48 multispectral pixels of 3.24 m."""
    for index in range(2):
        write_product(folder, RawProduct(gaofen2.GaofenScene(index=index, size=48, gsd=3.24), seed=5))


def write_product(folder: Path, product: RawProduct) -> None:
    """Write `products/<product>/` (every second one packed) and `terrain/<product>.tif`."""
    scene = product.scene
    image = product.sensor_image()
    coarse = image.reshape(4, scene.size, RATIO, scene.size, RATIO).mean(axis=(2, 4), dtype=np.float32)
    place, terrain = folder / "products" / scene.product, folder / "terrain"
    place.mkdir(parents=True)
    terrain.mkdir(exist_ok=True)
    number = scene.sensor[-1]
    _write_image(place / f"{scene.product}-MSS{number}.tiff", gaofen2.digital_numbers(coarse), product, pan=False)
    _write_image(place / f"{scene.product}-PAN{number}.tiff", panchromatic(image), product, pan=True)
    left, top = product.corner
    write_geotiff(
        terrain / f"{scene.product}.tif",
        product.terrain.heights[np.newaxis],
        transform=north_up(left=left, top=top, gsd=DEM_GSD_M),
        epsg=scene.epsg,
    )
    if scene.index % 2:
        pack(place)


def panchromatic(image: F32) -> npt.NDArray[np.uint16]:
    """10-bit numbers (1, h, w) of the broad band, from reflectance (4, h, w)."""
    broad = np.tensordot(np.array(PAN_SHARE, dtype=np.float32), image, axes=1) + np.float32(PAN_AIR)
    sun = np.cos(np.deg2rad(SUN_ZENITH_DEGREES)) / np.pi
    numbers = np.rint(broad * np.float32(PAN_LIGHT * sun / PAN_RADIANCE_PER_DN))
    return np.asarray(np.clip(numbers, 1, gaofen2.MAX_DN), dtype=np.uint16)[np.newaxis]


def pack(folder: Path) -> None:
    """Replaces a folder by `<folder>.tar.gz` of its files, the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(entry, file)
            path.unlink()
    folder.rmdir()
    folder.with_name(f"{folder.name}.tar.gz").write_bytes(gzip.compress(raw.getvalue(), 6, mtime=0))


def _write_image(path: Path, numbers: npt.NDArray[np.uint16], product: RawProduct, *, pan: bool) -> None:
    """Write the image without georeference, with its `.rpb` and `.xml` files."""
    rpc = product.rpc(pan=pan)
    write_geotiff(path, numbers, transform=None, epsg=None)
    path.with_suffix(".rpb").write_text(rpb_text(rpc))
    path.with_suffix(".xml").write_text(gaofen2.metadata_text(_metadata(product, rpc, pan=pan)))


def _metadata(product: RawProduct, rpc: Rpc, *, pan: bool) -> dict[str, object]:
    ratio = RATIO if pan else 1
    scene = product.scene
    camera_scene = gaofen2.GaofenScene(scene.index, scene.size * ratio, scene.gsd / ratio)
    left, top = camera_scene.left_top()
    last = float(camera_scene.size - 1)
    lines, samples = np.array([0.0, 0.0, last, last]), np.array([0.0, last, last, 0.0])
    longitudes, latitudes = rpc.locate(lines, samples, np.full(4, BASE_M))
    values = gaofen2.metadata(camera_scene, left=left, top=top)
    values |= {"Bands": "5" if pan else "1,2,3,4", "MapProjection": "", "ImageGSD": f"{camera_scene.gsd:g}"}
    corners = ("TopLeft", "TopRight", "BottomRight", "BottomLeft")
    for corner, latitude, longitude in zip(corners, latitudes, longitudes, strict=True):
        values |= {f"{corner}Latitude": f"{latitude:.6f}", f"{corner}Longitude": f"{longitude:.6f}"}
    return values


def rpb_text(rpc: Rpc) -> str:
    """The coefficients as an `.rpb` file, in the producer's layout."""
    names = {field.name: re.sub(r"_(\w)", lambda found: found[1].upper(), field.name) for field in fields(Rpc)}
    lines = ['satId = "XXX";', 'bandId = "XXX";', 'SpecId = "XXX";', "BEGIN_GROUP = IMAGE"]
    lines += ["\terrBias =   1.0;", "\terrRand =    0.0;"]
    for field, name in names.items():
        value = getattr(rpc, field)
        if isinstance(value, tuple):
            numbers = ",\n".join(f"\t\t\t{number:+.16E}" for number in value)
            lines.append(f"\t{name.removesuffix('f')} = (\n{numbers});")
        else:
            lines.append(f"\t{name}set = {value!r};" if name.endswith("Off") else f"\t{name} = {value!r};")
    return "\n".join([*lines, "END_GROUP = IMAGE", "END;", ""])
