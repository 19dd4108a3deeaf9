"""Sentinel-2 pixels without a product: used as declared, rejected if they contradict the declaration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.config import datasets
from dithc.data.raster import write_geotiff
from dithc.data.scene import Reason, Rejection, Scene
from tests.data.readers.scene_readers import land, reader

L1C = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]
L2A = [band for band in L1C if band != "B10"]
BANDS = ["B02", "B03", "B04", "B08"]
PLACE: dict[str, Any] = {"transform": (10.0, 0.0, 300000.0, 0.0, -10.0, 4600020.0), "epsg": 32632}


read_all, read_one, read_error = reader(
    datasets.Sentinel2ArraySource, kind="sentinel2-array", bands=BANDS, units="dn", offset=0.0
)


@pytest.fixture(name="land")
def draw_land() -> np.ndarray:
    return land(width=20)


def test_array_and_geotiff_are_read_as_equal_scenes(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land)
    array = read_one(tmp_path)
    np.testing.assert_array_equal(array.pixels, land)
    assert array.pixels.dtype == np.int16
    assert array.place.crs is None
    (tmp_path / "scene.npy").unlink()
    write_geotiff(tmp_path / "scene.tif", land, **PLACE)
    raster = read_one(tmp_path)
    np.testing.assert_array_equal(raster.pixels, land)
    assert raster.place.crs == "EPSG:32632"
    assert raster.place.gsd_m == 10.0


def test_declared_offset_and_quantification_convert_to_reflectance(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land + 1000)
    np.testing.assert_array_equal(read_one(tmp_path, offset=-1000).pixels, land.astype(int))
    np.save(tmp_path / "scene.npy", land // 2)
    scene = read_one(tmp_path, quantification=5000)
    np.testing.assert_array_equal(scene.pixels, land // 2 * 2)
    np.save(tmp_path / "scene.npy", land.astype(np.float32) / 10000)
    np.testing.assert_array_equal(read_one(tmp_path, units="reflectance", offset=None).pixels, land)


@pytest.mark.parametrize(("layout", "wrong_layout"), [("chw", "hwc"), ("hwc", "chw")])
def test_wrong_axis_order_is_rejected_with_the_correct_order(
    tmp_path: Path, land: np.ndarray, layout: str, wrong_layout: str
) -> None:
    np.save(tmp_path / "scene.npy", land if layout == "chw" else land.transpose(1, 2, 0))
    np.testing.assert_array_equal(read_one(tmp_path, axis_order=layout).pixels, land)
    error = read_error(tmp_path, axis_order=wrong_layout)
    assert error.reason == Reason.WRONG_LAYOUT
    assert f"axis_order: {layout}" in error.fix


def test_wrong_number_of_bands_or_axes_is_rejected(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land[:3])
    assert read_error(tmp_path).reason == Reason.BAND_COUNT
    np.save(tmp_path / "scene.npy", land[0])
    assert read_error(tmp_path).reason == Reason.WRONG_LAYOUT
    assert read_one(tmp_path, bands=["B02"]).pixels.shape == (1, 16, 20)


def test_dtype_that_contradicts_the_units_is_rejected(tmp_path: Path, land: np.ndarray) -> None:
    path = tmp_path / "scene.npy"
    np.save(path, (land // 20).astype(np.uint8))
    assert read_error(tmp_path).reason == Reason.WRONG_DTYPE
    np.save(path, land.astype(np.float32) / 10000)
    error = read_error(tmp_path)
    assert error.reason == Reason.WRONG_DTYPE
    assert "units: reflectance" in error.fix
    np.save(path, land)
    assert read_error(tmp_path, units="reflectance", offset=None).reason == Reason.WRONG_DTYPE
    np.save(path, land.astype(np.float32))
    assert read_error(tmp_path, units="reflectance", offset=None).reason == Reason.UNITS_CONTRADICTION
    np.testing.assert_array_equal(read_one(tmp_path).pixels, land)
    np.save(path, land.astype(np.complex64))
    assert read_error(tmp_path).reason == Reason.WRONG_DTYPE


def test_nan_saturation_and_nodata_are_invalid_and_stored_as_zero(tmp_path: Path, land: np.ndarray) -> None:
    values = land.astype(np.float32)
    values[1, 3, 4], values[2, 5, 6], values[0, 0, 0], values[:, 7, 7] = np.nan, 65535, 9999, 0
    np.save(tmp_path / "scene.npy", values)
    scene = read_one(tmp_path, nodata=9999)
    invalid = np.argwhere(scene.mask == 0).tolist()
    assert invalid == [[0, 0], [3, 4], [5, 6], [7, 7]]
    assert scene.pixels[1, 3, 4] == 0
    assert scene.pixels[0, 3, 4] == land[0, 3, 4]


@pytest.mark.parametrize(("dtype", "units"), [("u2", "dn"), ("f4", "reflectance"), ("f8", "reflectance")])
def test_byte_order_and_memory_layout_do_not_change_scenes(
    tmp_path: Path, land: np.ndarray, dtype: str, units: str
) -> None:
    values = land if units == "dn" else land * 1e-4
    for order in "<>":
        np.save(tmp_path / f"scene{order}.npy", values.astype(order + dtype))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(values.astype(dtype)))
    scenes = read_all(tmp_path, units=units, offset=0.0 if units == "dn" else None)
    assert len({scene.properties["dtype"] for scene in scenes}) == 1
    for scene in scenes:
        np.testing.assert_array_equal(scene.pixels, land)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("units", ["dn", "reflectance"])
def test_half_precision_is_read_without_numpy_warnings(tmp_path: Path, land: np.ndarray, units: str) -> None:
    values = (land if units == "dn" else land * 1e-4).astype(np.float16)
    values[:, 0, 0] = -9999  # 8 from its neighbors in this type
    np.save(tmp_path / "scene.npy", values)
    scene = read_one(tmp_path, units=units, offset=0.0 if units == "dn" else None, nodata=-9999)
    assert np.argwhere(scene.mask == 0).tolist() == [[0, 0]]
    stored = np.rint(values.astype(float) * (1 if units == "dn" else 1e4))
    np.testing.assert_array_equal(scene.pixels[:, 1:], stored[:, 1:])


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_file_without_valid_pixels_is_rejected(tmp_path: Path, value: float) -> None:
    np.save(tmp_path / "scene.npy", np.full((4, 8, 8), value, np.float32))
    assert read_error(tmp_path).reason == Reason.ALL_NODATA


def test_remaining_offset_is_detected_without_a_cirrus_band(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land + 1000)
    error = read_error(tmp_path)
    assert error.reason == Reason.OFFSET_CONTRADICTION
    assert "offset: -1000" in error.fix


def test_bright_cloud_is_accepted_by_the_offset_check(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land // 4 + 6000)
    read_one(tmp_path)


def test_offset_subtracted_twice_is_rejected(tmp_path: Path, land: np.ndarray) -> None:
    np.save(tmp_path / "scene.npy", land)
    error = read_error(tmp_path, offset=-1000)
    assert error.reason == Reason.OFFSET_CONTRADICTION
    assert "offset: 0" in error.fix


@pytest.mark.parametrize(("share", "is_valid"), [(0.05, True), (0.33, False)])
def test_large_band_share_below_plausible_reflectance_is_rejected(
    tmp_path: Path, land: np.ndarray, share: float, is_valid: bool
) -> None:
    """The median is plausible for ground, because only a part of the image is water."""
    declared = land + 1000
    declared[3].flat[: int(share * declared[3].size)] = 700
    np.save(tmp_path / "scene.npy", declared)
    if is_valid:
        read_one(tmp_path, offset=-1000.0)
    else:
        error = read_error(tmp_path, offset=-1000.0)
        assert error.reason == Reason.OFFSET_CONTRADICTION
        assert "33%" in error.got
        assert "offset: 0" in error.fix
    read_one(tmp_path, offset=-1000.0, check_offset=False)


def test_very_negative_values_without_offset_suggest_nodata(tmp_path: Path, land: np.ndarray) -> None:
    damaged = land.astype(np.int16)
    damaged[1] = -9999
    np.save(tmp_path / "scene.npy", damaged)
    assert "nodata" in read_error(tmp_path, offset=0.0).fix


@pytest.mark.slow
def test_real_chips_are_all_accepted(real_data: Callable[[str], Path]) -> None:
    scenes = read_all(real_data("s2_l2a_12band_chips"), bands=L2A, axis_order="hwc")
    assert all(isinstance(scene, Scene) for scene in scenes)
    assert len(scenes) == 480


def test_real_chips_with_a_wrong_declared_offset_are_rejected(real_data: Callable[[str], Path]) -> None:
    folder = real_data("s2_l2a_12band_chips")
    found = read_all(folder, bands=L2A, units="dn", offset=-1000.0, axis_order="hwc")
    passed = [scene.scene_id for scene in found if isinstance(scene, Scene)]
    assert len(passed) <= 2


def test_real_pair_with_a_missing_or_superfluous_offset_is_rejected(real_data: Callable[[str], Path]) -> None:
    folder = real_data("s2_l1c_l2a_pairs")
    with_offset, without = "282D_485L_3_3.tif", "38D_378R_2_3.tif"
    for offset, error in ((0, with_offset), (-1000, without)):
        found = {scene.scene_id: scene for scene in read_all(folder / "S2L1C", bands=L1C, offset=offset)}
        rejection = found.pop(error)
        assert rejection.error.reason == Reason.OFFSET_CONTRADICTION
        assert "B10" in rejection.error.got
        assert all(isinstance(scene, Scene) for scene in found.values())
    assert all(isinstance(scene, Scene) for scene in read_all(folder / "S2L2A", bands=L2A))
    assert all(isinstance(scene, Rejection) for scene in read_all(folder / "S2L2A", bands=L2A, offset=-1000))
