"""Grids of rasters: world files, systems without a grid, and the length of a pixel on the ground."""

import warnings
from math import cos, radians, sin, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.warp import transform

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.grids import pixel_sides_m
from dithc.data.raster import read_raster
from dithc.data.readers import read_scenes
from dithc.data.readers.gaofen2.orthorectify import read_heights
from dithc.data.scene import Reason, Rejection, Scene

LAND = np.random.default_rng(0).integers(500, 3000, (3, 32, 32), dtype=np.uint16)
WORLD = "10\n0\n0\n-10\n500005\n4999995\n"
KINDS: dict[str, dict[str, Any]] = {
    "geotiff": {"units": "dn", "bands": ["a", "b", "c"]},
    "sentinel2-array": {"units": "dn", "bands": ["a", "b", "c"], "offset": 0.0},
    "gaofen2": {"bands": ["a", "b", "c"]},
}
SOURCES = {
    "geotiff": datasets.GeoTiffSource,
    "sentinel2-array": datasets.Sentinel2ArraySource,
    "gaofen2": datasets.Gaofen2Source,
}


def write(path: Path, pixels: np.ndarray[Any, Any] = LAND, **options: Any) -> None:
    count, height, width = pixels.shape
    shape = {"count": count, "height": height, "width": width, "dtype": pixels.dtype}
    driver = "JP2OpenJPEG" if path.suffix == ".jp2" else "GTiff"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(path, "w", driver=driver, **shape, **options) as raster:
            raster.write(pixels)


def scene_of(folder: Path, kind: str = "geotiff") -> Scene | Rejection:
    (scene,) = read_scenes(SOURCES[kind](kind=kind, path=str(folder), **KINDS[kind]), folder)
    return scene


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", [None, (1.0, 0.0, 0.0, 0.0, -1.0, 0.0)])
def test_crs_without_geotransform_is_rejected(tmp_path: Path, kind: str, transform: Any) -> None:
    options = {} if transform is None else {"transform": rasterio.Affine(*transform)}
    write(tmp_path / "x.tif", crs="EPSG:32633", **options)
    scene = scene_of(tmp_path, kind)
    assert scene.error.reason == Reason.CRS_MISSING
    assert "no geotransform" in scene.error.problem


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "world"),
    [
        *(("x.tif", "x.tfw"), ("x.tif", "x.TFW"), ("x.tif", "x.wld"), ("x.tif", "x.tifw"), ("x.TIF", "x.TFW")),
        *(("x.tiff", "x.tfw"), ("x.tiff", "x.tiffw"), ("x.y.tif", "x.y.tfw"), ("x.jp2", "x.j2w"), ("x.jp2", "x.wld")),
    ],
)
def test_world_file_grid_matches_gdal(tmp_path: Path, kind: str, name: str, world: str) -> None:
    write(tmp_path / name, crs="EPSG:32633")
    (tmp_path / world).write_text(WORLD)
    with rasterio.open(tmp_path / name) as raster:
        expected = tuple(raster.transform)[:6]
    assert expected == (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0)
    scene = scene_of(tmp_path, kind)
    assert isinstance(scene, Scene), scene.error
    assert (scene.place.transform, scene.place.gsd_m, scene.place.epsg) == (expected, 10.0, 32633)
    info = read_raster(tmp_path / name)[1]
    assert info.companions == (tmp_path / world,)


def test_embedded_grid_overrides_the_world_file(tmp_path: Path) -> None:
    write(tmp_path / "x.tif", crs="EPSG:32633", transform=rasterio.Affine(20, 0, 4e5, 0, -20, 5e6))
    (tmp_path / "x.tfw").write_text(WORLD)
    assert read_raster(tmp_path / "x.tif")[1].transform[0] == 20.0


@pytest.mark.parametrize("text", ["", "10 0 0", "ten\n0\n0\n-10\n5\n5", "nan 0 0 -10 5 5", "0 0 0 0 5 5"])
def test_invalid_world_file_raises_an_error_with_the_file_name(tmp_path: Path, text: str) -> None:
    write(tmp_path / "x.tif", crs="EPSG:32633")
    (tmp_path / "x.tfw").write_text(text)
    with pytest.raises(UserError, match=r"x\.tfw"):
        read_raster(tmp_path / "x.tif")


def test_world_file_without_crs_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "x.tif")
    (tmp_path / "x.tfw").write_text(WORLD.replace(".", ","))
    for kind in KINDS:
        scene = scene_of(tmp_path, kind)
        assert scene.error.reason == Reason.CRS_MISSING


def test_heights_without_a_grid_or_with_a_scale_are_rejected(tmp_path: Path) -> None:
    heights = np.full((1, 32, 32), 100.0, np.float32)
    write(tmp_path / "dem.tif", heights, crs="EPSG:32633")
    with pytest.raises(UserError, match="does not define a grid"):
        read_heights(tmp_path / "dem.tif", height_m=0.0)
    (tmp_path / "dem.tfw").write_text(WORLD)
    assert read_heights(tmp_path / "dem.tif", height_m=0.0).values.max() == 100.0
    with rasterio.open(tmp_path / "dem.tif", "r+") as raster:
        raster.scales = [0.1]
    with pytest.raises(UserError, match=r"scale 0\.1"):
        read_heights(tmp_path / "dem.tif", height_m=0.0)


def web_mercator(latitude: float) -> float:
    """Mean ground length of a meter of EPSG:3857 (Snyder 1987, radii of curvature 4-20 and 4-18)."""
    e2, sine = 0.00669437999014, sin(radians(latitude))
    along, across = (1 - e2) / (1 - e2 * sine**2) ** 1.5, 1 / sqrt(1 - e2 * sine**2)
    return sqrt(along * across) * cos(radians(latitude))


def mercator(latitude: float) -> float:
    """Ground length of a meter of EPSG:3395 (Snyder 1987, 7-8)."""
    return cos(radians(latitude)) / sqrt(1 - 0.00669437999014 * sin(radians(latitude)) ** 2)


@pytest.mark.parametrize("latitude", [-80.0, -45.0, -10.0, 5.0, 9.0, 30.0, 48.0, 60.0, 78.0])
@pytest.mark.parametrize("side", [0.3, 10.0, 500.0])
@pytest.mark.parametrize(
    ("crs", "ground"),
    [
        *(("EPSG:3857", web_mercator), ("EPSG:3395", mercator)),
        *(("EPSG:32633", lambda latitude: 0.9996), ("EPSG:6933", lambda latitude: 1.0)),
    ],
)
def test_gsd_equals_the_pixel_length_on_the_ground(
    tmp_path: Path, latitude: float, side: float, crs: str, ground: Any
) -> None:
    (x,), (y,) = transform("EPSG:4326", crs, [15.0], [latitude])
    write(tmp_path / "x.tif", crs=crs, transform=rasterio.Affine(side, 0, x - 16 * side, 0, -side, y + 16 * side))
    scene = scene_of(tmp_path)
    assert isinstance(scene, Scene), scene.error
    expected = side * ground(latitude)
    if abs(expected / side - 1) <= 0.01:
        assert scene.place.gsd_m == side
    else:
        assert scene.place.gsd_m == pytest.approx(expected, rel=1e-3)
    assert scene.place.transform is not None
    assert scene.place.transform[0] == pytest.approx(side)


def test_oblong_ground_pixels_log_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "x.tif", crs="EPSG:6933", transform=rasterio.Affine(10, 0, 1e6, 0, -10, 6e6))
    assert pixel_sides_m((10.0, 0.0, 1e6, 0.0, -10.0, 6e6), shape=(32, 32), crs="EPSG:6933") == pytest.approx(
        (6.645, 15.05), rel=1e-3
    )
    with caplog.at_level("WARNING"):
        scene_of(tmp_path)
    assert "on the ground" in caplog.text


def test_grid_outside_the_crs_extent_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "x.tif", crs="EPSG:32633", transform=rasterio.Affine(10, 0, 9e7, 0, -10, 9e7))
    scene = scene_of(tmp_path)
    assert scene.error.reason == Reason.GRID_MISMATCH
