"""Cloud masks of scenes: masks of the product, mask files of the user, and the buffer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dithc.config import datasets
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.readers import read_scenes
from dithc.data.scene import Mask, Reason, Rejection, Scene, SceneRejectedError

BANDS = ["B02", "B03", "B04"]
L1C = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]


def read_product(
    folder: Path, *, checksum: str = "skip", gsd_m: float = 10.0, **clouds: Any
) -> Scene | SceneRejectedError:
    source = datasets.Sentinel2Source(
        kind="sentinel2",
        path="x",
        checksum=checksum,
        bands=BANDS,
        gsd_m=gsd_m,
        clouds=datasets.ProductCloudsConfig(**clouds),
    )
    (found,) = read_scenes(source, folder)
    return found.error if isinstance(found, Rejection) else found


def read_arrays(folder: Path, *, bands: list[str] = BANDS, **clouds: Any) -> list[Scene | SceneRejectedError]:
    source = datasets.Sentinel2ArraySource(
        kind="sentinel2-array", path="x", bands=bands, units="dn", offset=0.0, clouds=datasets.CloudsConfig(**clouds)
    )
    return [found.error if isinstance(found, Rejection) else found for found in read_scenes(source, folder)]


def mask_of(found: Scene | SceneRejectedError) -> np.ndarray:
    assert isinstance(found, Scene), found
    return found.mask


def assert_rejected(found: Scene | SceneRejectedError, reason: Reason) -> SceneRejectedError:
    assert found.reason == reason
    return found


def layer_path(safe: Path, pattern: str) -> Path:
    return next(safe.glob(f"GRANULE/*/{pattern}"))


def rewrite(path: Path, pixels: np.ndarray) -> None:
    """Rewrite a file of a product as GeoTIFF under its old name."""
    _, info = read_raster(path)
    path.unlink()
    write_geotiff(path, pixels, transform=info.transform, epsg=info.epsg)


@pytest.fixture
def classes(safe_product: Path) -> np.ndarray:
    """Draw scene classes at 20 m, on the 10 m grid (H, W)."""
    drawn = np.random.default_rng(0).integers(0, 12, (1, 48, 48)).astype(np.uint8)
    rewrite(layer_path(safe_product, "IMG_DATA/R20m/*_SCL_20m.jp2"), drawn)
    return drawn[0].repeat(2, 0).repeat(2, 1)


@pytest.mark.parametrize("chosen", [[3, 8, 9, 10], [], [2], [9, 11]])
def test_configured_scl_classes_are_masked_as_cloud(safe_folder: Path, classes: np.ndarray, chosen: list[int]) -> None:
    mask = mask_of(read_product(safe_folder, scl_classes=chosen))
    np.testing.assert_array_equal(mask == Mask.CLOUD, np.isin(classes, chosen))
    np.testing.assert_array_equal(mask == Mask.INVALID, classes < 2)


@pytest.mark.parametrize("values", [[0], [1], [12]])
def test_invalid_scl_classes_are_rejected_in_the_config(values: list[int]) -> None:
    with pytest.raises(ValueError, match="scl_classes"):
        datasets.ProductCloudsConfig(scl_classes=values)


@pytest.mark.parametrize(("gsd_m", "file"), [(10.0, "20m"), (60.0, "60m")])
def test_cloud_probability_at_or_above_the_threshold_is_masked(
    safe_folder: Path, safe_product: Path, gsd_m: float, file: str
) -> None:
    path = layer_path(safe_product, f"QI_DATA/MSK_CLDPRB_{file}.jp2")
    percent = np.random.default_rng(1).integers(0, 101, read_raster(path)[0].shape).astype(np.uint8)
    rewrite(path, percent)
    mask = mask_of(read_product(safe_folder, scl_classes=[], min_cloud_probability=40, gsd_m=gsd_m))
    factor = int(file[:2]) // int(gsd_m)
    expected = (percent[0] >= 40).repeat(factor, 0).repeat(factor, 1)
    np.testing.assert_array_equal(mask == Mask.CLOUD, expected & (mask != Mask.INVALID))
    assert expected.any()


def test_used_mask_is_verified_and_damaged_unused_mask_adds_a_note(safe_folder: Path, safe_product: Path) -> None:
    path = layer_path(safe_product, "QI_DATA/MSK_CLDPRB_20m.jp2")
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    found = read_product(safe_folder, checksum="verify")
    assert found.notes == ("damaged-unused-file",)
    assert_rejected(read_product(safe_folder, checksum="verify", min_cloud_probability=40), Reason.CHECKSUM_MISMATCH)


@pytest.mark.parametrize("setting", [{"min_cloud_probability": 40}, {"use_msk_classi": True}])
def test_missing_product_mask_is_rejected_with_the_setting(
    safe_folder: Path, safe_product: Path, setting: dict[str, Any]
) -> None:
    for path in safe_product.glob("GRANULE/*/QI_DATA/MSK_CL*"):
        path.unlink()
    assert (
        f"clouds.{next(iter(setting))}" in assert_rejected(read_product(safe_folder, **setting), Reason.INCOMPLETE).fix
    )


def test_msk_classi_masks_opaque_clouds_and_cirrus_but_not_snow(safe_folder: Path, safe_product: Path) -> None:
    layers = np.zeros((3, 16, 16), np.uint8)
    layers[0, 2], layers[1, :, 5], layers[2, 9] = 1, 1, 1
    place = read_raster(layer_path(safe_product, "IMG_DATA/R60m/*_B02_60m.jp2"))[1]
    path = layer_path(safe_product, "QI_DATA") / "MSK_CLASSI_B00.jp2"
    write_geotiff(path, layers, transform=place.transform, epsg=place.epsg, driver="JP2OpenJPEG")
    mask = mask_of(read_product(safe_folder, scl_classes=[], use_msk_classi=True))
    np.testing.assert_array_equal(mask == Mask.CLOUD, layers[:2].any(0).repeat(6, 0).repeat(6, 1))
    path.unlink()
    write_geotiff(path, layers[:2], transform=place.transform, epsg=place.epsg)
    assert_rejected(read_product(safe_folder, use_msk_classi=True), Reason.WRONG_DTYPE)


@pytest.mark.parametrize(("buffer_m", "reach"), [(1.0, 1), (20.0, 2), (45.0, 5)])
def test_buffer_dilates_clouds_but_preserves_no_data(
    safe_folder: Path, safe_product: Path, buffer_m: float, reach: int
) -> None:
    drawn = np.full((1, 48, 48), 4, np.uint8)
    drawn[0, 3, 0], drawn[0, 30, 31], drawn[0, 29] = 9, 8, 0
    rewrite(layer_path(safe_product, "IMG_DATA/R20m/*_SCL_20m.jp2"), drawn)
    start = mask_of(read_product(safe_folder))
    buffered = mask_of(read_product(safe_folder, buffer_m=buffer_m))
    expected = start.copy()
    for y, x in np.argwhere(start == Mask.CLOUD):
        window = expected[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
        window[window == Mask.VALID] = Mask.CLOUD
    np.testing.assert_array_equal(buffered, expected)
    assert (buffered[58:60] == Mask.INVALID).all()


@pytest.mark.parametrize("suffix", ["npy", "tif", "tif without place"])
def test_user_mask_next_to_a_product_is_added(safe_folder: Path, safe_product: Path, suffix: str) -> None:
    start = mask_of(read_product(safe_folder))
    user_mask = np.zeros((96, 96), np.uint8)
    user_mask[10:20], user_mask[80:82, :50], user_mask[90, 90] = 1, 255, 1
    path = safe_folder / f"{safe_product.stem}_mask.{suffix[:3]}"
    info = read_raster(layer_path(safe_product, "IMG_DATA/R10m/*_B02_10m.jp2"))[1]
    if suffix == "npy":
        np.save(path, user_mask)
    else:
        write_geotiff(path, user_mask[None], transform=info.transform, epsg=info.epsg)
    expected = start.copy()
    expected[(user_mask == 1) & (start == Mask.VALID)] = Mask.CLOUD
    expected[user_mask == 255] = Mask.INVALID
    np.testing.assert_array_equal(mask_of(read_product(safe_folder, mask={})), expected)
    np.testing.assert_array_equal(mask_of(read_product(safe_folder)), start)
    if suffix != "npy":
        write_geotiff(path, user_mask[None], transform=(10.0, 0.0, 0.0, 0.0, -10.0, 0.0), epsg=info.epsg)
        assert "another place" in assert_rejected(read_product(safe_folder, mask={}), Reason.GRID_MISMATCH).got


def test_pixels_excluded_by_the_user_mask_are_invalid(safe_folder: Path, safe_product: Path) -> None:
    start = mask_of(read_product(safe_folder))
    path, valid = safe_folder / f"{safe_product.stem}_mask.tif", np.random.default_rng(1).random((96, 96)) < 0.5
    write_geotiff(path, np.zeros((1, 96, 96), np.uint8), transform=None, epsg=None, nodata=0)
    np.testing.assert_array_equal(
        mask_of(read_product(safe_folder, mask={})), start
    )  # 0 is clear, despite its declaration
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK="YES"), rasterio.open(path, "r+") as raster:
        raster.write_mask(valid)
    np.testing.assert_array_equal(mask_of(read_product(safe_folder, mask={})), np.where(valid, start, Mask.INVALID))


def test_missing_duplicate_or_mismatched_user_mask_is_rejected(safe_folder: Path, safe_product: Path) -> None:
    assert (
        f"{safe_product.stem}_mask" in assert_rejected(read_product(safe_folder, mask={}), Reason.INCOMPLETE).expected
    )
    path = safe_folder / f"{safe_product.stem}_mask.npy"
    np.save(path, np.zeros((95, 96), np.uint8))
    assert_rejected(read_product(safe_folder, mask={}), Reason.GRID_MISMATCH)
    np.save(path, np.full((96, 96), 0.4))
    assert "threshold" in assert_rejected(read_product(safe_folder, mask={}), Reason.UNITS_CONTRADICTION).fix
    path.write_bytes(path.read_bytes()[:2000])
    assert_rejected(read_product(safe_folder, mask={}), Reason.READ_ERROR)
    np.save(path, np.zeros((96, 96), bool))
    assert isinstance(read_product(safe_folder, mask={}), Scene)
    path.with_suffix(".tif").touch()
    assert "several" in assert_rejected(read_product(safe_folder, mask={}), Reason.INCOMPLETE).problem


def test_masks_next_to_arrays_are_applied_and_not_read_as_scenes(tmp_path: Path) -> None:
    land = np.random.default_rng(0).integers(300, 900, (3, 20, 24)).astype(np.uint16)
    cloudy = np.zeros((20, 24), np.uint16)
    cloudy[4, 4], cloudy[7, 7], cloudy[0, 0] = 1024, 2048, 255
    np.save(tmp_path / "a.npy", land)
    np.save(tmp_path / "a_mask.npy", cloudy)
    (found,) = read_arrays(tmp_path, mask={}, buffer_m=10.0)
    expected = np.full((20, 24), Mask.VALID, np.uint8)
    expected[3:6, 3:6] = expected[6:9, 6:9] = Mask.CLOUD
    expected[0, 0] = Mask.INVALID
    np.testing.assert_array_equal(found.mask, expected)
    (unmasked,) = read_arrays(tmp_path)
    assert (mask_of(unmasked) == Mask.VALID).all()


def test_buffer_for_arrays_without_masks_is_rejected_in_the_config() -> None:
    with pytest.raises(ValueError, match=r"clouds\.mask"):
        datasets.Sentinel2ArraySource(
            kind="sentinel2-array",
            path="x",
            bands=BANDS,
            units="dn",
            offset=0.0,
            clouds=datasets.CloudsConfig(buffer_m=10.0),
        )


UDM2 = {"names": "*_udm2*.tif", "clear": [1], "cloud": [0]}
PLACE: dict[str, Any] = {"epsg": 32633, "transform": (3.0, 0.0, 5e5, 0.0, -3.0, 5e6)}


def read_planet_scenes(folder: Path, **settings: Any) -> list[Scene | SceneRejectedError]:
    source = {"kind": "geotiff", "path": "x", "bands": BANDS, "units": "dn", **settings}
    found = read_scenes(datasets.GeoTiffSource.model_validate(source), folder)
    return [one.error if isinstance(one, Rejection) else one for one in found]


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    """Create two scenes of two products each in one folder, with one usable data mask of 8 bands per scene."""
    draws = np.random.default_rng(0)
    for number in range(2):
        scene = f"2023051{number}_101010_3B"
        for end in ("AnalyticMS_SR_clip", "AnalyticMS_clip"):
            pixels = draws.integers(300, 4000, (3, 16, 16), dtype=np.uint16)
            write_geotiff(tmp_path / f"{scene}_{end}.tif", pixels, **PLACE)
        mask = np.zeros((8, 16, 16), np.uint8)
        mask[0], mask[0, number, :], mask[6] = 1, 0, 77
        write_geotiff(tmp_path / f"{scene}_udm2_clip.tif", mask, **PLACE)
    return tmp_path


def test_mask_pattern_matches_scenes_by_name_prefix(delivery: Path) -> None:
    found = read_planet_scenes(delivery, clouds={"mask": UDM2})
    assert [(mask_of(one) == Mask.CLOUD).any(axis=1).nonzero()[0].tolist() for one in found] == [[0], [0], [1], [1]]
    assert all((mask_of(one) == Mask.VALID).all() for one in read_planet_scenes(delivery)), (
        "a mask is not a scene without the pattern"
    )
    inverted = read_planet_scenes(delivery, clouds={"mask": UDM2 | {"cloud": "others", "band": 7}})
    assert all((mask_of(one) == Mask.CLOUD).all() for one in inverted)
    assert_rejected(read_planet_scenes(delivery, clouds={"mask": UDM2 | {"band": 7}})[0], Reason.UNITS_CONTRADICTION)
    assert (
        "band"
        in assert_rejected(
            read_planet_scenes(delivery, clouds={"mask": UDM2 | {"band": 9}})[0], Reason.GRID_MISMATCH
        ).expected
    )
    (delivery / "20230511_101010_3B_udm2_clip.tif").unlink()
    kinds = [type(one) for one in read_planet_scenes(delivery, clouds={"mask": UDM2})]
    assert kinds == [Scene, Scene, SceneRejectedError, SceneRejectedError]


def test_mask_of_another_scene_with_a_common_prefix_is_not_used(tmp_path: Path) -> None:
    for name in ("a", "a_b"):
        write_geotiff(tmp_path / f"{name}.tif", np.ones((3, 8, 8), np.uint16), **PLACE)
    write_geotiff(tmp_path / "a_mask.tif", np.zeros((1, 8, 8), np.uint8), **PLACE)
    first, second = read_planet_scenes(tmp_path, clouds={"mask": {}})
    assert isinstance(first, Scene)
    assert "no mask" in assert_rejected(second, Reason.INCOMPLETE).problem


def test_masks_of_scenes_with_a_file_per_band_are_found(tmp_path: Path) -> None:
    for end in ("SR_B2", "SR_B3", "SR_B4"):
        write_geotiff(tmp_path / f"LC08_T1_{end}.TIF", np.ones((1, 8, 8), np.uint16), **PLACE)
    quality = np.full((1, 8, 8), 21824, np.uint16)
    quality[0, 0, 0], quality[0, 1, 1] = 1, 22280
    write_geotiff(tmp_path / "LC08_T1_QA_PIXEL.TIF", quality, **PLACE)
    mask = {"names": "*_QA_PIXEL.TIF", "clear": [21824], "cloud": "others", "no_data": [1]}
    (found,) = read_planet_scenes(tmp_path, suffixes=["_SR_B2.TIF", "_SR_B3.TIF", "_SR_B4.TIF"], clouds={"mask": mask})
    assert [mask_of(found)[place] for place in ((0, 0), (1, 1), (2, 2))] == [Mask.INVALID, Mask.CLOUD, Mask.VALID]


@pytest.mark.parametrize("changes", [{"names": "udm2.tif"}, {"clear": [255]}, {"clear": [1]}, {"cloud": [0]}])
def test_ambiguous_mask_settings_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pattern|share the value"):
        datasets.MaskFileConfig.model_validate(changes)
