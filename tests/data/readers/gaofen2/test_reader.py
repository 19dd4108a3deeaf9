"""Reading of Gaofen-2 scenes: GeoTIFF with its XML, and .npy excerpts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.config import datasets
from dithc.data import synthesize
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.scene import Reason, Rejection, Scene
from tests.data.readers.scene_readers import reader

read_all, _, _ = reader(datasets.Gaofen2Source, kind="gaofen2")


def reasons(folder: Path, **settings: Any) -> list[Reason]:
    return [scene.error.reason for scene in read_all(folder, **settings) if isinstance(scene, Rejection)]


@pytest.fixture
def product(tmp_path: Path) -> Path:
    synthesize("gaofen2", tmp_path / "files", seed=1, scenes=1, size=64)
    return tmp_path / "files"


def test_geotiff_preserves_pixels_and_reads_facts_from_the_xml(product: Path) -> None:
    (scene,) = read_all(product)
    array, info = read_raster(next(product.glob("*MSS*.tif*")))
    np.testing.assert_array_equal(scene.pixels, array)
    assert scene.bands == ["B", "G", "R", "NIR"]
    assert scene.units == "dn"
    assert scene.place.crs == info.crs
    assert scene.place.gsd_m == 4.0
    assert scene.properties["satellite"] == "GF2"
    assert scene.properties["sensing_time"].startswith("2020")


def test_panchromatic_file_of_a_product_is_not_read_as_a_scene(product: Path) -> None:
    array, info = read_raster(next(product.glob("*MSS*.tif*")))
    write_geotiff(product / "GF2_PMS1_X-PAN1.tiff", array[:1], transform=info.transform, epsg=info.epsg or 0)
    assert len(read_all(product)) == 1


def test_broken_xml_is_rejected_and_missing_xml_logs_a_warning(product: Path, caplog: pytest.LogCaptureFixture) -> None:
    xml = next(product.glob("*.xml"))
    xml.write_text("<ProductMetaData><SatelliteID>GF2")
    assert reasons(product) == [Reason.READ_ERROR]
    xml.unlink()
    with caplog.at_level("WARNING"):
        assert isinstance(read_all(product)[0], Scene)
    assert "no XML" in caplog.text


def test_pixels_are_invalid_only_if_all_bands_are_zero(tmp_path: Path) -> None:
    pixels = np.full((4, 8, 8), 300, np.uint16)
    pixels[:, :2], pixels[0, 5, 5] = 0, 0
    np.save(tmp_path / "scene.npy", pixels)
    (scene,) = read_all(tmp_path)
    assert (scene.mask == 0).sum() == 16


def test_dtype_that_contradicts_the_units_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "scene.npy", np.full((4, 8, 8), 100, np.uint8))
    assert reasons(tmp_path) == [Reason.WRONG_DTYPE]
    assert isinstance(read_all(tmp_path, units="byte")[0], Scene)
    np.save(tmp_path / "scene.npy", np.full((4, 8, 8), 100, np.float32))
    assert reasons(tmp_path) == [Reason.WRONG_DTYPE]


def test_real_scenes_require_the_declared_axis_order(real_data: Callable[[str], Path]) -> None:
    folder = real_data("gf2_4band") / "ms"
    assert reasons(folder, units="byte", axis_order="chw") == [Reason.WRONG_LAYOUT] * 4
    scenes = read_all(folder, units="byte", axis_order="hwc")
    assert all(isinstance(scene, Scene) for scene in scenes)
    assert {scene.pixels.shape[0] for scene in scenes if isinstance(scene, Scene)} == {4}
