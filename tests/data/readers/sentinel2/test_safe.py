"""Reading of Sentinel-2 products: correct reflectance on one grid, and rejection of every type of damage."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.grids import north_up
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.readers.sentinel2.safe_metadata import read_metadata
from dithc.data.scene import Mask, Reason, Rejection
from tests.data.readers.scene_readers import reader

L2A = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"]


read_all, read_one, read_error = reader(datasets.Sentinel2Source, kind="sentinel2")


def band(product: Path, name: str) -> Path:
    return next(product.glob(f"GRANULE/*/IMG_DATA/*/*_{name}.jp2"))


def rewrite(path: Path, change: Callable[[np.ndarray], np.ndarray] = lambda array: array, **options: Any) -> np.ndarray:
    """Rewrite a band as GeoTIFF under its old name, with other pixels or georeference."""
    array, info = read_raster(path)
    changed = change(array.copy())
    path.unlink()
    write_geotiff(path, changed, **{"transform": info.transform, "epsg": info.epsg, **options})
    return changed


def test_all_bands_are_on_the_10_m_grid_with_offsets_applied(safe_folder: Path, safe_product: Path) -> None:
    scene = read_one(safe_folder)
    assert scene.bands == L2A
    assert scene.pixels.shape == (12, 96, 96)
    assert scene.pixels.dtype == np.int16
    assert scene.units == "reflectance"
    assert scene.scale == 1e-4
    digital, _ = read_raster(band(safe_product, "B04_10m"))
    valid = scene.mask != Mask.INVALID
    np.testing.assert_array_equal(scene.pixels[scene.bands.index("B04")][valid], digital[0].astype(int)[valid] - 1000)
    assert scene.properties["baseline"] == "04.00"
    assert scene.properties["offset_source"] == "xml"
    assert scene.properties["offsets"] == [-1000.0] * 12


def test_coarser_bands_use_the_finest_file_and_preserve_the_mean(safe_folder: Path, safe_product: Path) -> None:
    digital, _ = read_raster(band(safe_product, "B11_20m"))
    rewrite(band(safe_product, "B11_60m"), np.zeros_like)
    scene = read_one(safe_folder, checksum="skip")
    upsampled = scene.pixels[scene.bands.index("B11")][2:-2, 2:-2]
    assert abs(upsampled.mean() - (digital[0, 1:-1, 1:-1].astype(float).mean() - 1000)) < 5


@pytest.mark.parametrize(("name", "factor"), [("B11_20m", 2), ("B09_60m", 6)])
def test_nearest_resampling_repeats_measured_pixels(
    safe_folder: Path, safe_product: Path, name: str, factor: int
) -> None:
    digital, _ = read_raster(band(safe_product, name))
    scene = read_one(safe_folder, resampling="nearest")
    expected = (digital[0].astype(int) - 1000).repeat(factor, axis=0).repeat(factor, axis=1)
    valid = scene.mask != Mask.INVALID
    np.testing.assert_array_equal(scene.pixels[scene.bands.index(name[:3])][valid], expected[valid])


def test_no_data_and_saturation_are_masked_and_do_not_bleed(safe_folder: Path, safe_product: Path) -> None:
    def set_invalid(array: np.ndarray) -> np.ndarray:
        array[0, :4, :4], array[0, 10, 10] = 0, 65535
        return array

    rewrite(band(safe_product, "B05_20m"), set_invalid)
    scene = read_one(safe_folder, checksum="skip")
    assert not scene.mask[:8, :8].any()
    assert not scene.mask[20:22, 20:22].any()
    assert scene.mask[30:, 30:].any()
    assert scene.pixels[scene.bands.index("B05")].max() < 20000
    assert (scene.pixels[scene.bands.index("B05")][:8, :8] == 0).all()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", ["B03_10m", "metadata", "SCL_20m"])
def test_altered_byte_is_rejected_as_checksum_mismatch(safe_folder: Path, safe_product: Path, place: str) -> None:
    path = safe_product / "MTD_MSIL2A.xml" if place == "metadata" else band(safe_product, place)
    flip(path)
    error = read_error(safe_folder)
    assert error.reason == Reason.CHECKSUM_MISMATCH
    assert path.name in error.problem
    assert "checksum: skip" in error.fix


def test_altered_byte_of_an_unused_file_only_adds_a_note(
    safe_folder: Path, safe_product: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = read_one(safe_folder)
    flip(band(safe_product, "B03_60m"))
    flip(next(safe_product.glob("GRANULE/*/MTD_TL.xml")))
    with caplog.at_level("WARNING"):
        after = read_one(safe_folder)
    assert after.notes == ("damaged-unused-file",)
    assert "MTD_TL.xml and 1 more" in caplog.text or "_B03_60m.jp2 and 1 more" in caplog.text
    np.testing.assert_array_equal(expected.pixels, after.pixels)
    assert read_error(safe_folder, gsd_m=60.0).reason == Reason.CHECKSUM_MISMATCH


def test_product_without_manifest_is_read_with_a_warning(
    safe_folder: Path, safe_product: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (safe_product / "manifest.safe").unlink()
    with caplog.at_level("WARNING"):
        read_one(safe_folder)
    assert "no manifest.safe" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsg": 32651}, Reason.CRS_MIXED),
        ({"epsg": 4326}, Reason.CRS_WRONG),
        ({"epsg": None, "transform": None}, Reason.CRS_MISSING),
        ({"transform": north_up(left=300000, top=4600020, gsd=30.0)}, Reason.RESOLUTION_MISMATCH),
        ({"transform": (20.0, 0.0, 300000.0, 0.0, -25.0, 4600020.0)}, Reason.RESOLUTION_MISMATCH),
        ({"transform": (20.0, 0.5, 300000.0, 0.5, -20.0, 4600020.0)}, Reason.GRID_MISMATCH),
        ({"transform": north_up(left=float("nan"), top=1e300, gsd=20.0)}, Reason.GRID_MISMATCH),
        ({"transform": north_up(left=300200, top=4600020, gsd=20.0)}, Reason.GRID_MISMATCH),
        ({"change": lambda array: array.astype(np.uint8)}, Reason.WRONG_DTYPE),
        ({"change": lambda array: array.astype(np.complex64)}, Reason.WRONG_DTYPE),
        ({"change": lambda array: array.repeat(2, axis=0)}, Reason.WRONG_DTYPE),
    ],
)
def test_band_with_wrong_crs_grid_or_dtype_is_rejected(
    safe_folder: Path, safe_product: Path, options: dict[str, Any], reason: Reason
) -> None:
    rewrite(band(safe_product, "B05_20m"), **options)
    assert read_error(safe_folder, checksum="skip").reason == reason


def test_geotiff_named_jp2_is_read_with_a_warning(
    safe_folder: Path, safe_product: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = read_one(safe_folder)
    rewrite(band(safe_product, "B05_20m"))
    with caplog.at_level("WARNING"):
        after = read_one(safe_folder, checksum="skip")
    assert "named as JPEG 2000, but is read as GTiff" in caplog.text
    np.testing.assert_array_equal(expected.pixels, after.pixels)


def test_product_with_only_no_data_is_rejected(safe_folder: Path, safe_product: Path) -> None:
    rewrite(band(safe_product, "B02_10m"), np.zeros_like)
    assert read_error(safe_folder, checksum="skip").reason == Reason.ALL_NODATA


def test_baseline_with_offsets_requires_offsets_in_the_metadata(safe_folder: Path, safe_product: Path) -> None:
    path = safe_product / "MTD_MSIL2A.xml"
    text = path.read_text()
    path.write_text(re.sub(r"<BOA_ADD_OFFSET band_id=.*?</BOA_ADD_OFFSET>", "", text))
    error = read_error(safe_folder, checksum="skip")
    assert error.reason == Reason.OFFSET_CONTRADICTION
    path.write_text(
        re.sub(r"<BOA_ADD_OFFSET band_id=.*?</BOA_ADD_OFFSET>", "", text).replace(
            "<PROCESSING_BASELINE>04.00", "<PROCESSING_BASELINE>03.01"
        )
    )
    assert read_one(safe_folder, checksum="skip").properties["offset_source"] == "none"


def test_metadata_file_name_is_case_insensitive(safe_folder: Path, safe_product: Path) -> None:
    (safe_product / "MTD_MSIL2A.xml").rename(safe_product / "MTD_MSIL2a.xml")
    read_one(safe_folder, checksum="skip")


def test_product_is_found_as_the_source_path_and_at_any_depth(safe_folder: Path, safe_product: Path) -> None:
    assert read_one(safe_product).scene_id == safe_product.name
    deeper = safe_folder / "2022" / "april"
    deeper.mkdir(parents=True)
    shutil.move(safe_product, deeper)
    assert read_one(safe_folder).scene_id == f"2022/april/{safe_product.name}"


def test_two_product_levels_in_one_folder_raise_an_error(safe_folder: Path) -> None:
    second = safe_folder / "S2A_MSIL1C_X.SAFE"
    second.mkdir()
    (second / "MTD_MSIL1C.xml").write_text("<a/>")
    with pytest.raises(UserError, match="two levels"):
        read_all(safe_folder)


def test_folder_without_product_raises_an_error_with_the_contents(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an empty folder"):
        read_all(tmp_path)
    (tmp_path / "product.tar").touch()
    with pytest.raises(UserError, match=r"(?s)product\.tar.*unpack"):
        read_all(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_all(tmp_path / "absent")


def test_real_metadata_of_all_baselines_is_parsed(real_data: Callable[[str], Path]) -> None:
    found = {
        product.name: read_metadata(product) for product in real_data("s2_safe_metadata").iterdir() if product.is_dir()
    }
    assert {metadata.quantification for metadata in found.values()} == {10000.0}
    for metadata in found.values():
        has_offset = float(metadata.properties["baseline"]) >= 4.0
        assert set(metadata.offsets.values()) == ({-1000.0} if has_offset else {0.0})
        assert len(metadata.offsets) == 13


def test_real_decimated_product_is_rejected_by_checksum_and_resolution(real_data: Callable[[str], Path]) -> None:
    folder = real_data("s2_safe_tiny_downsampled")
    for checksum, reason in (("verify", Reason.CHECKSUM_MISMATCH), ("skip", Reason.RESOLUTION_MISMATCH)):
        found = read_all(folder, checksum=checksum)
        assert [scene.error.reason for scene in found if isinstance(scene, Rejection)] == [reason] * len(found)
