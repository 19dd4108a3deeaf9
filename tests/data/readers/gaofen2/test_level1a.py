"""Orthorectification of level 1A products against a synthetic camera and terrain."""

import hashlib
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
import scipy.ndimage

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.readers import read_scenes
from dithc.data.readers.gaofen2 import orthorectify
from dithc.data.scene import Reason, Rejection, Scene
from dithc.data.synthetic.gaofen2 import GaofenScene
from tests.data.readers.scene_readers import reader
from tests.data.readers.system_files import add_system_files, touch
from tests.inputs.gaofen2_raw import RATIO, RawProduct

SIZE, SEED, GSD_M = 48, 5, 3.24
METRES = 20.0
"""Steps of a coordinate image per meter."""


read_all, read_one, read_error = reader(datasets.Gaofen2Source, kind="gaofen2")


def read_rejections(folder: Path, **settings: Any) -> list[Rejection]:
    return [scene for scene in read_all(folder, **settings) if isinstance(scene, Rejection)]


@pytest.fixture
def product(raw_gaofen: Path) -> Path:
    """Return the folder of the unpacked product."""
    return next(path for path in (raw_gaofen / "products").iterdir() if path.is_dir())


@pytest.fixture
def dem(raw_gaofen: Path, product: Path) -> str:
    return str(raw_gaofen / "terrain" / f"{product.name}.tif")


def geolocation_error_px(scene: Scene, left: float, top: float) -> npt.NDArray[np.float64]:
    """Return the distance (n,) in pixels between encoded and actual position, away from the image border."""
    values = scene.pixels.astype(np.float64)
    x, y = left + values[0] / METRES, top - values[1] / METRES
    gsd_m = scene.place.gsd_m
    assert scene.place.transform is not None
    a, _, corner_x, _, e, corner_y = scene.place.transform
    center_x, center_y = corner_x + a * (np.arange(len(x.T)) + 0.5), corner_y + e * (np.arange(len(x)) + 0.5)
    right, down = (x - center_x) / gsd_m, (y - center_y[:, None]) / gsd_m
    inner = scipy.ndimage.binary_erosion(scene.mask > 0, iterations=3)
    assert inner.sum() > 100
    return np.asarray(np.hypot(right, down)[inner])


@pytest.fixture
def coordinates(product: Path) -> tuple[float, float]:
    """Store ground coordinates in the image: meters right and below of the land's corner, which is returned."""
    raw = RawProduct(GaofenScene(index=0, size=SIZE, gsd=GSD_M), SEED)
    lines, samples = np.mgrid[0:SIZE, 0:SIZE].astype(np.float64)
    x, y = raw.ground_points((lines + 0.5) * RATIO - 0.5, (samples + 0.5) * RATIO - 0.5)
    left, top = raw.corner
    bands = np.rint(np.stack([x - left, top - y, np.ones_like(x), np.ones_like(x)]) * METRES).astype(np.uint16)
    write_geotiff(product / "new.tif", bands, transform=None, epsg=None)
    (product / "new.tif").replace(
        next(product.glob("*-MSS1.tiff"))
    )  # overwriting would make GDAL delete its companions
    return left, top


@pytest.mark.parametrize("gsd_m", [2.0, 3.24, 4.0, 8.0])
def test_geolocation_error_is_below_half_a_pixel(
    product: Path, dem: str, coordinates: tuple[float, float], gsd_m: float
) -> None:
    error = geolocation_error_px(read_one(product, dem=dem, gsd_m=gsd_m), *coordinates)
    rmse = float(np.sqrt((error**2).mean()))
    print(f"geolocation error at {gsd_m} m: RMSE {rmse:.3f} px, greatest {error.max():.3f} px")
    assert rmse <= 0.1  # the requirement is half a pixel; steps of 0.05 m are 0.025 px at 2 m
    assert error.max() <= 0.5


def test_constant_height_without_dem_leaves_geolocation_errors(
    product: Path, dem: str, coordinates: tuple[float, float]
) -> None:
    """A constant height displaces hills. The height of the land's center leaves one pixel, height 0 leaves six."""
    errors = [geolocation_error_px(read_one(product, height_m=height), *coordinates).mean() for height in (120.0, 0.0)]
    assert errors[0] > 0.5
    assert errors[1] > 4.0


def test_height_m_is_added_to_the_dem_heights(
    product: Path, dem: str, coordinates: tuple[float, float], tmp_path: Path
) -> None:
    heights, info = read_raster(Path(dem))
    low = tmp_path / "geoid.tif"
    write_geotiff(low, heights + np.float32(33.0), transform=info.transform, epsg=info.epsg)
    assert geolocation_error_px(read_one(product, dem=str(low), height_m=-33.0), *coordinates).max() < 0.5


def test_ground_outside_the_dem_is_invalid(product: Path, dem: str, tmp_path: Path) -> None:
    heights, info = read_raster(Path(dem))
    intact = read_one(product, dem=dem)
    half = tmp_path / "half.tif"
    heights[:, :, heights.shape[2] // 2 :] = -9999
    write_geotiff(half, heights, transform=info.transform, epsg=info.epsg, nodata=-9999)
    scene = read_one(product, dem=str(half))
    assert 0.2 < (scene.mask > 0).sum() / (intact.mask > 0).sum() < 0.8
    elsewhere = tmp_path / "elsewhere.tif"
    a, b, c, d, e, f = info.transform
    write_geotiff(elsewhere, heights, transform=(a, b, c + 90_000, d, e, f), epsg=info.epsg, nodata=-9999)
    assert "no height in the area of the image" in read_error(product, dem=str(elsewhere)).got


def test_unusable_dem_raises_an_error_before_scenes_are_read(product: Path, dem: str, tmp_path: Path) -> None:
    """All scenes need the DEM. A single error with a fix replaces one rejection per product."""
    heights, info = read_raster(Path(dem))
    grid: dict[str, Any] = {"transform": info.transform, "epsg": info.epsg}
    path = tmp_path / "wrong.tif"
    invalid: list[tuple[npt.NDArray[Any], dict[str, Any], str]] = [
        (np.where(heights > 130, -32768, heights).astype(np.int16), grid, "no data None"),
        (heights * np.float32(100.0), grid, "heights of"),  # centimeters
        (np.full_like(heights, np.nan), grid, "no height anywhere"),
        (np.full_like(heights, np.inf), grid, "no height anywhere"),
        (heights.astype(np.complex64), grid, "complex64"),
        (np.repeat(heights, 2, axis=0), grid, "2 bands"),
        (heights, {"transform": None, "epsg": None}, "system None"),
    ]
    for values, options, text in invalid:
        write_geotiff(path, values, **options)
        with pytest.raises(UserError, match=text) as caught:
            read_scenes(datasets.Gaofen2Source(kind="gaofen2", path="x", dem=str(path)), product)
        assert all(label in str(caught.value) for label in ("source.dem", "expected:", "fix:"))
    write_geotiff(path, heights, **grid)
    with rasterio.open(path, "r+") as raster:
        raster.units = ("ft",)
    with pytest.raises(UserError, match="heights in 'ft'"):
        read_scenes(datasets.Gaofen2Source(kind="gaofen2", path="x", dem=str(path)), product)
    intact = Path(dem).read_bytes()
    for damaged in (intact[: len(intact) // 2], b"", b"no raster" * 99):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"source\.dem"):
            read_scenes(datasets.Gaofen2Source(kind="gaofen2", path="x", dem=str(path)), product)


def test_dem_is_read_once_for_all_products(raw_gaofen: Path, dem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()

    def counted(path: Path) -> Any:
        read.append(path)
        return read_raster(path)

    monkeypatch.setattr(orthorectify, "read_raster", counted)
    assert len(read_all(raw_gaofen / "products", dem=dem)) == 2
    assert read == [Path(dem)]


@pytest.mark.parametrize("pansharpen", ["none", "gsa"])
def test_hash_of_an_unpacked_product_covers_exactly_the_files_read(product: Path, pansharpen: str) -> None:
    settings = {"height_m": 120.0, **({"pansharpen": "gsa", "gsd_m": 0.81} if pansharpen == "gsa" else {})}
    names = sorted(path.name for path in product.iterdir())
    assert [name[-8:] for name in names] == ["MSS1.rpb", "SS1.tiff", "MSS1.xml", "PAN1.rpb", "AN1.tiff", "PAN1.xml"]
    read = names if pansharpen == "gsa" else names[:3]
    digest = hashlib.sha256()
    for name in read:
        digest.update(f"{name} {hashlib.sha256((product / name).read_bytes()).hexdigest()}\n".encode())
    assert read_one(product, **settings).sha256 == digest.hexdigest()
    if pansharpen == "none":
        for name in names[3:]:
            (product / name).write_bytes(b"not read")
        assert read_one(product, **settings).sha256 == digest.hexdigest()


def test_packed_product_equals_the_unpacked_product(raw_gaofen: Path, tmp_path: Path) -> None:
    archive = next((raw_gaofen / "products").glob("*.tar.gz"))
    packed = read_one(archive, height_m=120.0)
    assert packed.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "unpacked", filter="data")
    unpacked = read_one(tmp_path / "unpacked", height_m=120.0)
    np.testing.assert_array_equal(packed.pixels, unpacked.pixels)
    assert packed.properties == unpacked.properties
    assert packed.properties["satellite"] == "GF2"
    assert packed.properties["orthorectified"] == "120 m"
    assert packed.scene_id == archive.name


def test_product_present_packed_and_unpacked_is_read_once(raw_gaofen: Path) -> None:
    folder = raw_gaofen / "products"
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as content:
        content.extractall(folder / archive.name.removesuffix(".tar.gz"), filter="data")
    assert len(read_all(folder, height_m=120.0)) == 2


def test_orthorectification_requires_height_m_or_dem(raw_gaofen: Path, product: Path) -> None:
    """Packed products are not scenes, and images without a system are rejected with the settings to use."""
    (rejection,) = read_rejections(raw_gaofen / "products")
    assert rejection.error.reason == Reason.CRS_MISSING
    assert "`height_m` or `dem`" in rejection.error.fix
    shutil.rmtree(product)
    with pytest.raises(UserError, match="set `height_m` or `dem`"):
        read_all(raw_gaofen / "products")


def test_image_without_coefficients_is_rejected(product: Path) -> None:
    next(product.glob("*-MSS1.rpb")).unlink()
    error = read_error(product, height_m=120.0)
    assert error.reason == Reason.CRS_MISSING
    assert "gdalwarp" in error.fix


def test_coefficients_of_the_panchromatic_image_are_rejected(product: Path) -> None:
    shutil.copy(next(product.glob("*-PAN1.rpb")), next(product.glob("*-MSS1.rpb")))
    assert "another image" in read_error(product, height_m=120.0).problem


@pytest.mark.parametrize("value", ["1e300", "0.0", "-1.5", "1e5"])
def test_altered_coefficients_are_rejected(product: Path, dem: str, value: str) -> None:
    """Each large coefficient is altered in a round. Large errors are rejected, and none ends in a traceback."""
    path = next(product.glob("*-MSS1.rpb"))
    intact = path.read_text()
    for number in ("lineScale", "sampScale", "latScale", "longScale", "latOffset", "longOffset"):
        path.write_text(re.sub(rf"{number} = [^;]*;", f"{number} = {value};", intact))
        assert read_error(product, dem=dem).reason in (Reason.READ_ERROR, Reason.GRID_MISMATCH)


def test_image_size_that_contradicts_the_xml_is_rejected(product: Path) -> None:
    """An image cropped at its right or bottom keeps its geometry, and would silently be a smaller scene."""
    for ending, count in (("MSS1", 4), ("PAN1", 1)):
        image = next(product.glob(f"*-{ending}.tiff"))
        intact, (pixels, _) = image.read_bytes(), read_raster(image)
        assert len(pixels) == count
        for changed in (pixels[:, :-1], pixels[:, :, :-1], np.pad(pixels, ((0, 0), (0, 1), (0, 0)))):
            write_geotiff(product / "new.tif", changed, transform=None, epsg=None)
            (product / "new.tif").replace(image)
            error = read_error(product, height_m=120.0, pansharpen="gsa", gsd_m=0.81)
            assert error.reason == Reason.GRID_MISMATCH
            assert "as specified in its XML" in error.expected
        image.write_bytes(intact)
    assert read_one(product, height_m=120.0, pansharpen="gsa", gsd_m=0.81).properties["pansharpened"] == "gsa"


@pytest.mark.parametrize("change", ["no data", "complex", "five bands", "zeros"])
def test_image_with_wrong_nodata_dtype_bands_or_values_is_rejected(product: Path, change: str) -> None:
    image = next(product.glob("*-MSS1.tiff"))
    pixels, _ = read_raster(image)
    variants = {"complex": pixels.astype(np.complex64), "five bands": np.concatenate([pixels, pixels[:1]])}
    variants["zeros"] = np.zeros_like(pixels)
    nodata = 300 if change == "no data" else None
    write_geotiff(product / "new.tif", variants.get(change, pixels), transform=None, epsg=None, nodata=nodata)
    (product / "new.tif").replace(image)
    read_error(product, height_m=120.0)


def test_panchromatic_image_of_wrong_dtype_is_rejected(product: Path) -> None:
    image = next(product.glob("*-PAN1.tiff"))
    pixels, _ = read_raster(image)
    write_geotiff(product / "new.tif", (pixels // 4).astype(np.uint8), transform=None, epsg=None)
    (product / "new.tif").replace(image)
    error = read_error(product, height_m=120.0, pansharpen="gsa", gsd_m=0.81)
    assert error.reason == Reason.WRONG_DTYPE
    assert error.expected.startswith("one band of uint16")


@pytest.mark.parametrize(
    ("name", "value", "is_read"),
    [
        ("CenterTime", "2019-05-01 03:00:00", False),
        ("CenterTime", "2020-05-05 03:00:00", False),
        ("CenterTime", "2020-05-02 01:00:00", True),  # another time zone
        ("SensorID", "PMS2", False),
        ("SensorID", "pms1", True),
        ("SatelliteID", "GF1", False),
        ("SatelliteID", "GF-2", True),
        ("SatelliteID", "", True),
    ],
)
def test_xml_camera_and_day_must_match_the_product_name(product: Path, name: str, value: str, is_read: bool) -> None:
    xml = next(product.glob("*-MSS1.xml"))
    xml.write_text(re.sub(f"(<{name}>)[^<]*<", rf"\g<1>{value}<", xml.read_text()))
    (scene,) = read_all(product, height_m=120.0)
    assert isinstance(scene, Scene) == is_read
    if isinstance(scene, Rejection):
        assert value in scene.error.got
        assert scene.error.expected == "GF2, PMS1, 20200501"


def test_xml_with_another_location_is_rejected(product: Path) -> None:
    xml = next(product.glob("*-MSS1.xml"))
    xml.write_text(re.sub(r"(LeftLatitude>)40\.", r"\g<1>41.", xml.read_text()))
    assert read_error(product, height_m=120.0).reason == Reason.GRID_MISMATCH


@pytest.mark.parametrize(
    "name", ["GF2_PMS2_E116.4_N40.0_20200506_L1A14660053001", "GF1_PMS1_W72.3_S36.7_20180506_L1A0002"]
)
def test_product_names_with_ids_of_any_length_are_read(raw_gaofen: Path, name: str) -> None:
    archive = next((raw_gaofen / "products").glob("*.tar.gz"))
    renamed = archive.rename(archive.with_name(f"{name}.tar.gz"))
    assert len(read_rejections(raw_gaofen / "products", height_m=120.0)) == 0
    assert len(read_all(renamed, height_m=120.0)) == 1


def test_product_mask_becomes_no_data_for_packed_and_unpacked_products(
    raw_gaofen: Path, product: Path, dem: str
) -> None:
    image = next(product.glob("*-MSS1.tiff"))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK="NO"), rasterio.open(image, "r+") as raster:
        raster.write_mask(np.arange(SIZE)[:, None] >= np.zeros(SIZE) + SIZE // 2)  # the upper half has no data
    assert image.with_name(f"{image.name}.msk").is_file()
    folder = raw_gaofen / "products"
    (unpacked,) = (
        scene for scene in read_all(folder, dem=dem) if isinstance(scene, Scene) and product.name in scene.scene_id
    )
    assert 0.3 < (unpacked.mask > 0).sum() / SIZE**2 < 0.7
    with tarfile.open(folder / f"{product.name}.tar.gz", "w:gz") as archive:
        archive.add(product, arcname=product.name)
    shutil.rmtree(product)
    packed = next(scene for scene in read_all(folder, dem=dem) if product.name in scene.scene_id)
    np.testing.assert_array_equal(packed.mask, unpacked.mask)


@pytest.mark.parametrize("is_packed", [False, True])
def test_operating_system_files_are_not_read_as_products(product: Path, tmp_path: Path, is_packed: bool) -> None:
    shutil.copytree(product, tmp_path / "in" / product.name)
    add_system_files(tmp_path / "in")
    folder = tmp_path / "in"
    if is_packed:
        folder = tmp_path / "packed"
        folder.mkdir()
        with tarfile.open(folder / f"{product.name}.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "in", "x")
    touch(folder, "more.rar")
    scenes = read_scenes(datasets.Gaofen2Source(kind="gaofen2", path="x", height_m=100.0), folder)
    assert len(scenes) == 1
    scenes.inspect(0)
    assert scenes.left_out() == {".rar": 1}
    assert isinstance(read_one(folder, height_m=100.0), Scene)
