"""Rasters of configured sensors: the configuration is applied, and contradictions are rejected."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import ingest_scenes
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.scene import Reason
from tests.data.readers.scene_readers import reader
from tests.inputs.rasters import BANDS, OFFSET, SCALE, write_raster

LANDSAT = {"bands": list(BANDS), "units": "reflectance", "scale": SCALE, "offset": OFFSET, "sensor": "OLI"}
PLACE: dict[str, Any] = {"transform": (30.0, 0.0, 500_000.0, 0.0, -30.0, 4_400_000.0), "epsg": 32650}


read_all, read_one, read_error = reader(datasets.GeoTiffSource, kind="geotiff")


@pytest.fixture
def rasters(tmp_path: Path) -> Path:
    write_raster(tmp_path / "files", size=64, seed=2)
    return tmp_path / "files"


def test_reflectance_is_scale_times_number_plus_offset(rasters: Path) -> None:
    scene = read_one(rasters, **LANDSAT)
    numbers, info = read_raster(next(rasters.glob("*.tif")))
    valid = numbers[0] > 0
    expected = numbers.astype(np.float64) * 2.75e-5 - 0.2
    np.testing.assert_allclose(scene.pixels[:, valid] * 1e-4, expected[:, valid], atol=5.1e-5)
    np.testing.assert_array_equal(scene.mask > 0, valid)
    assert not valid.all()  # the no-data value of the file
    assert scene.units == "reflectance"
    assert scene.place.crs == info.crs
    assert scene.place.gsd_m == 30.0
    assert scene.properties["sensor"] == "OLI"


def test_only_extra_pages_and_not_masks_or_overviews_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    shape = {"driver": "GTiff", "count": 1, "height": 32, "width": 32, "dtype": "uint8"}
    grid = {"crs": "EPSG:32650", "transform": rasterio.Affine(*PLACE["transform"])}
    pixels = np.random.default_rng(0).integers(1, 255, (3, 1, 32, 32)).astype(np.uint8)
    (tmp_path / "in").mkdir()
    for index in range(3):
        with rasterio.open(tmp_path / "in/pages.tif", "w", **shape, **grid, APPEND_SUBDATASET=str(index > 0)) as file:
            file.write(pixels[index])
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK="YES"),
        rasterio.open(tmp_path / "in/one.tif", "w", **shape, **grid) as file,
    ):
        file.write(pixels[0])
        file.write_mask(np.ones((32, 32), bool))
        file.build_overviews([2, 4])
    source = {"kind": "geotiff", "path": str(tmp_path / "in"), "bands": ["a"], "units": "byte"}
    one, pages = read_all(tmp_path / "in", bands=["a"], units="byte")
    assert (one.notes, pages.notes) == ((), ("multi-page",))
    np.testing.assert_array_equal(pages.pixels, pixels[0])
    rendering = {"bands": ["a", "a", "a"], "low": 0, "high": 255}
    dataset = datasets.DatasetConfig.model_validate(
        {"title": "x", "codec": "none", "source": source, "rendering": rendering}
    )
    assert ingest_scenes(dataset, tmp_path / "in", out=tmp_path / "out")["notes"] == {"multi-page": 1}
    assert "further pages or frames, which are not read: 1;" in caplog.text


def test_single_band_files_are_combined_into_one_scene(rasters: Path, tmp_path: Path) -> None:
    combined, numbers = read_one(rasters, **LANDSAT), read_raster(next(rasters.glob("*.tif")))
    separate = tmp_path / "apart"
    separate.mkdir()
    for number, band in enumerate(numbers[0], start=2):
        info = numbers[1]
        write_geotiff(
            separate / f"LC08_x_SR_B{number}.TIF", band[None], transform=info.transform, epsg=info.epsg, nodata=0
        )
    (separate / "LC08_x_QA_PIXEL.TIF").touch()
    suffixes = [f"_sr_b{number}.tif" for number in range(2, 8)]
    scene = read_one(separate, suffixes=suffixes, **LANDSAT)
    np.testing.assert_array_equal(scene.pixels, combined.pixels)
    assert scene.scene_id == "LC08_x_SR_B2.TIF"
    write_geotiff(separate / "LC08_x_SR_B5.TIF", numbers[0][:1, :32, :32], **PLACE)
    assert read_error(separate, suffixes=suffixes, **LANDSAT).reason == Reason.GRID_MISMATCH
    (separate / "LC08_x_SR_B5.TIF").unlink()
    assert read_error(separate, suffixes=suffixes, **LANDSAT).reason == Reason.MISSING_BAND


def test_band_file_names_match_exactly_before_case_insensitively(tmp_path: Path) -> None:
    declared = {"bands": ["a", "b"], "units": "byte", "suffixes": ["_B1.tif", "_B2.tif"]}
    number = {"x_B1.tif": 1, "x_B2.tif": 2, "x_b2.TIF": 3, "X_B1.tif": 4, "X_b2.tif": 5}
    for name, value in number.items():
        write_geotiff(tmp_path / name, np.full((1, 8, 8), value, np.uint8), **PLACE)
    first, second = read_all(tmp_path, **declared)
    assert (first.scene_id, first.pixels[:, 0, 0].tolist()) == ("X_B1.tif", [4, 5])
    assert (second.scene_id, second.pixels[:, 0, 0].tolist()) == ("x_B1.tif", [1, 2])
    (tmp_path / "x_B2.tif").rename(tmp_path / "x_B2.Tif")  # two similar names, neither exactly as declared
    _, rejection = read_all(tmp_path, **declared)
    assert rejection.error.got == "x_B1.tif, x_B2.Tif, x_b2.TIF"
    (tmp_path / "x_B2.Tif").unlink()
    (tmp_path / "x_b2.TIF").unlink()
    _, rejection = read_all(tmp_path, **declared)  # the file of scene X does not belong to this scene
    assert rejection.error.reason == Reason.MISSING_BAND


def test_duplicate_first_band_is_rejected_and_the_exact_match_is_read(tmp_path: Path) -> None:
    declared = {"bands": ["a", "b"], "units": "byte", "suffixes": ["_B1.tif", "_B2.tif"]}
    for name, value in {"x_B1.tif": 1, "x_b1.tif": 7, "x_B2.tif": 2}.items():
        write_geotiff(tmp_path / name, np.full((1, 8, 8), value, np.uint8), **PLACE)
    scene, rejection = read_all(tmp_path, **declared)
    assert scene.pixels[:, 0, 0].tolist() == [1, 2]
    assert rejection.error.got == "x_B1.tif, x_b1.tif"


def test_scale_and_offset_can_differ_per_band(tmp_path: Path) -> None:
    """Some products have a coefficient per band, such as PlanetScope's analytic radiance."""
    write_geotiff(tmp_path / "x.tif", np.full((2, 8, 8), 1000, np.uint16), **PLACE)
    scene = read_one(tmp_path, bands=["B", "R"], units="radiance", scale=[0.01, 0.02], offset=[0.0, -1.0])
    np.testing.assert_allclose(scene.pixels[:, 0, 0] * scene.scale, [10.0, 19.0])


@pytest.mark.parametrize(("units", "dtype"), [("dn", np.uint16), ("byte", np.uint8)])
def test_dn_and_byte_pixels_are_preserved_and_wrong_units_are_rejected(tmp_path: Path, units: str, dtype: Any) -> None:
    numbers = np.arange(3 * 8 * 8).reshape(3, 8, 8).astype(dtype)
    write_geotiff(tmp_path / "x.tif", numbers, **PLACE)
    scene = read_one(tmp_path, bands=["R", "G", "B"], units=units)
    np.testing.assert_array_equal(scene.pixels, numbers)
    assert scene.mask.all()  # without a declared no-data value
    wrong_units = "byte" if units == "dn" else "dn"
    assert read_error(tmp_path, bands=["R", "G", "B"], units=wrong_units).reason == Reason.WRONG_DTYPE


def test_declared_nodata_overrides_the_nodata_of_the_file(tmp_path: Path) -> None:
    values = np.full((1, 8, 8), 0.25, np.float32)
    values[0, 0, 0], values[0, 1, 1], values[0, 2, 2] = np.nan, -9999.0, 0.0
    write_geotiff(tmp_path / "x.tif", values, nodata=0.0, **PLACE)
    declared = {"bands": ["R"], "units": "reflectance"}
    invalid = read_one(tmp_path, nodata=-9999.0, **declared).mask == 0
    assert sorted(zip(*np.nonzero(invalid), strict=True)) == [(0, 0), (1, 1)]
    (rejection,) = read_all(tmp_path, **declared)  # -9999 is then a reflectance
    assert rejection.error.reason == Reason.OVERFLOW


@pytest.mark.parametrize(("dtype", "nodata"), [(np.uint16, -9999.0), (np.uint8, 256.0), (np.int16, 0.5)])
def test_nodata_not_representable_in_the_dtype_is_rejected(tmp_path: Path, dtype: Any, nodata: float) -> None:
    write_geotiff(tmp_path / "a.tif", np.ones((1, 8, 8), dtype), **PLACE)
    settings: dict[str, Any] = {"bands": ["a"], "units": "reflectance"}
    assert read_error(tmp_path, nodata=nodata, **settings).reason == Reason.WRONG_DTYPE
    assert read_one(tmp_path, nodata=7.0, **settings)


def test_complex_pixels_are_rejected(tmp_path: Path) -> None:
    write_geotiff(tmp_path / "a.tif", np.ones((1, 8, 8), np.complex64), **PLACE)
    assert read_error(tmp_path, bands=["a"], units="reflectance").reason == Reason.WRONG_DTYPE


@pytest.mark.parametrize(("a", "e"), [(30.0, 30.0), (-30.0, -30.0), (-30.0, 30.0)])
def test_mirrored_grid_is_rejected(tmp_path: Path, a: float, e: float) -> None:
    grid = {**PLACE, "transform": (a, 0.0, 500_000.0, 0.0, e, 4_400_000.0)}
    write_geotiff(tmp_path / "a.tif", np.ones((1, 8, 8), np.uint16), **grid)
    assert read_error(tmp_path, bands=["a"], units="dn").reason == Reason.GRID_MISMATCH


def test_indexes_of_a_color_table_are_rejected(tmp_path: Path) -> None:
    write_geotiff(tmp_path / "a.tif", np.ones((1, 8, 8), np.uint8), **PLACE)
    with rasterio.open(tmp_path / "a.tif", "r+") as raster:
        raster.write_colormap(1, {0: (0, 0, 0, 255), 1: (255, 0, 0, 255)})
    rejected = read_error(tmp_path, bands=["a"], units="byte")
    assert rejected.reason == Reason.WRONG_LAYOUT
    assert "color table" in rejected.problem


@pytest.mark.filterwarnings(f"ignore::{NotGeoreferencedWarning.__module__}.NotGeoreferencedWarning")
def test_files_without_georeference_require_a_declared_gsd(tmp_path: Path) -> None:
    write_geotiff(tmp_path / "x.tif", np.full((1, 8, 8), 9, np.uint8), transform=None, epsg=None)
    assert read_error(tmp_path, bands=["R"], units="byte").reason == Reason.CRS_MISSING
    assert read_one(tmp_path, bands=["R"], units="byte", gsd_m=0.25).place.gsd_m == 0.25


def test_folder_without_matching_names_reports_the_searched_pattern(rasters: Path) -> None:
    with pytest.raises(UserError, match=r"\*_SR_B2\.TIF"):
        read_all(rasters, suffixes=[f"_SR_B{n}.TIF" for n in range(2, 8)], **LANDSAT)


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": [1.0, 2.0]},
        {"scale": 0.0},
        {"wavelengths_nm": [500.0]},
        {"suffixes": ["_a.tif", "_A.tif", "_c.tif"]},
        {"suffixes": ["_a", "_b", "_c"]},
        {"units": "dn", "scale": 0.1},
        {"units": "byte", "offset": 1.0},
        {"path": None, "synthetic": {}},
    ],
)
def test_contradictory_source_settings_are_rejected(changes: dict[str, Any]) -> None:
    right = {"kind": "geotiff", "path": "x", "bands": ["R", "G", "B"], "units": "reflectance"}
    datasets.GeoTiffSource.model_validate(right)
    with pytest.raises(ValueError, match=r"scale|bands|suffixes|offset|synthetic"):
        datasets.GeoTiffSource.model_validate({**right, **changes})
