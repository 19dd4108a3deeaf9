"""Selection of bands and files of a Sentinel-2 product, and errors for missing files."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.scene import Reason, SceneRejectedError
from tests.data.readers.scene_readers import reader

L2A = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"]


_, staged, read_error = reader(datasets.Sentinel2Source, kind="sentinel2", checksum="skip")


def keep_resolutions(product: Path, *resolutions: str) -> None:
    for folder in product.glob("GRANULE/*/IMG_DATA/R*"):
        if folder.name not in resolutions:
            shutil.rmtree(folder)


def read_digital_numbers(product: Path, name: str) -> np.ndarray:
    return read_raster(next(product.glob(f"GRANULE/*/IMG_DATA/*/*_{name}.jp2")))[0][0].astype(int)


def suggested_settings(error: SceneRejectedError) -> list[dict[str, Any]]:
    """Return the settings in a fix, each alternative separately."""
    return [
        {key: value for setting in re.findall("`([^`]*)`", part) for key, value in yaml.safe_load(setting).items()}
        for part in error.fix.split("; or set ")[1:]
    ]


@pytest.mark.parametrize(
    ("resolution", "gsd_m", "lacks"), [("R60m", 60.0, ["B08"]), ("R20m", 20.0, ["B08", "B09"])], ids=["60", "20"]
)
def test_coarse_product_is_rejected_at_10_m_with_working_suggestions(
    safe_folder: Path, safe_product: Path, resolution: str, gsd_m: float, lacks: list[str]
) -> None:
    keep_resolutions(safe_product, resolution)
    error = read_error(safe_folder)
    assert error.reason == Reason.MISSING_BAND
    assert "B02 at 10 m" in error.got
    followed = suggested_settings(error)
    assert {"gsd_m": gsd_m, "bands": [band for band in L2A if band not in lacks]} in followed
    for settings in followed:
        scene = staged(safe_folder, **settings)
        assert scene.place.gsd_m == settings["gsd_m"] == gsd_m
        for band in settings["bands"]:
            stored = scene.pixels[scene.bands.index(band)]
            np.testing.assert_array_equal(stored, read_digital_numbers(safe_product, f"{band}_{resolution[1:]}") - 1000)
    repeated = read_error(safe_folder, gsd_m=gsd_m)
    native = {"B08": f"{gsd_m:g}", "B09": "60"}
    assert repeated.got.endswith(f"for {', '.join(f'{band} at {native[band]} m' for band in lacks)} or finer")


def test_suggestion_keeps_all_requested_bands_if_files_exist(safe_folder: Path, safe_product: Path) -> None:
    keep_resolutions(safe_product, "R60m")
    error = read_error(safe_folder, bands=["B8A", "B04"])
    assert suggested_settings(error) == [{"gsd_m": 60}]


@pytest.mark.parametrize("gsd_m", [20.0, 60.0])
def test_coarse_grid_uses_files_of_equal_or_finer_resolution(
    safe_folder: Path, safe_product: Path, gsd_m: float
) -> None:
    for path in safe_product.glob("GRANULE/*/IMG_DATA/R10m/*.jp2"):
        if "_B08_" not in path.name:
            path.write_bytes(b"not read")
    scene = staged(safe_folder, gsd_m=gsd_m)
    assert scene.pixels.shape == (12, 960 // int(gsd_m), 960 // int(gsd_m))
    for band in ("B02", "B8A", "B12"):
        np.testing.assert_array_equal(
            scene.pixels[scene.bands.index(band)], read_digital_numbers(safe_product, f"{band}_{gsd_m:g}m") - 1000
        )
    fine = read_digital_numbers(safe_product, "B08_10m") - 1000
    assert abs(scene.pixels[scene.bands.index("B08")].mean() - fine.mean()) < 0.02 * abs(fine.mean())
    read_error(safe_folder)


def test_bands_follow_the_requested_order_with_separate_offsets(safe_folder: Path, safe_product: Path) -> None:
    path = safe_product / "MTD_MSIL2A.xml"
    path.write_text(path.read_text().replace('band_id="8">-1000', 'band_id="8">-900'))
    full, part = staged(safe_folder), staged(safe_folder, bands=["B8A", "B02", "B11"])
    assert part.bands == ["B8A", "B02", "B11"]
    assert part.properties["offsets"] == [-900.0, -1000.0, -1000.0]
    for band in ("B8A", "B02", "B11"):
        np.testing.assert_array_equal(part.pixels[part.bands.index(band)], full.pixels[full.bands.index(band)])


def test_only_files_of_requested_bands_are_required(safe_folder: Path, safe_product: Path) -> None:
    keep_resolutions(safe_product, "R10m")
    read_error(safe_folder)
    assert staged(safe_folder, bands=["B04", "B08"]).pixels.shape == (2, 96, 96)
    settings = {"bands": ["B04", "B08"], "checksum": "verify"}
    error = read_error(safe_folder, **settings)
    assert "optional_files" in error.fix
    staged(safe_folder, **settings, optional_files=["*"])


def test_bands_missing_from_the_product_level_are_rejected_by_name(safe_folder: Path) -> None:
    error = read_error(safe_folder, bands=["B04", "B10"])
    assert error.reason == Reason.MISSING_BAND
    assert "L2A has no B10" in error.problem


def test_grid_finer_than_all_requested_bands_raises_an_error(safe_folder: Path) -> None:
    with pytest.raises(UserError, match="gsd_m: 20"):
        staged(safe_folder, bands=["B05", "B01"])
    assert staged(safe_folder, bands=["B05", "B01"], gsd_m=20.0).pixels.shape == (2, 48, 48)


@pytest.mark.parametrize("bands", [[], ["B02", "B02"], ["B2"], ["B13"], ["SCL"]])
def test_empty_duplicate_or_unknown_bands_are_rejected_in_the_config(bands: list[str]) -> None:
    with pytest.raises(ValueError, match="bands"):
        datasets.Sentinel2Source(kind="sentinel2", path="x", bands=bands)


def test_level_1c_at_60_m_averages_finer_bands(safe_folder: Path, tmp_path: Path) -> None:
    product = tmp_path / "products" / "S2B_MSIL1C_X.SAFE"
    shutil.rmtree(next(safe_folder.glob("*.SAFE")))
    images = product / "GRANULE" / "L1C_X" / "IMG_DATA"
    images.mkdir(parents=True)
    (product / "MTD_MSIL1C.xml").write_text(
        "<a><PROCESSING_BASELINE>02.09</PROCESSING_BASELINE><QUANTIFICATION_VALUE>10000</QUANTIFICATION_VALUE></a>"
    )
    fine = np.random.default_rng(0).integers(500, 4000, (1, 96, 96)).astype(np.uint16)
    coarse = fine.reshape(1, 16, 6, 16, 6).mean((2, 4)).astype(np.uint16)
    for name, pixels, gsd in (("B04", fine, 10.0), ("B10", coarse, 60.0)):
        grid = {"transform": (gsd, 0.0, 3e5, 0.0, -gsd, 46e5), "epsg": 32632}
        write_geotiff(images / f"T32TLL_20160101T000000_{name}.tif", pixels, **grid)
    scene = staged(safe_folder, bands=["B10", "B04"], gsd_m=60.0)
    np.testing.assert_array_equal(scene.pixels[scene.bands.index("B10")], coarse[0])
    assert (
        np.abs(scene.pixels[scene.bands.index("B04")][1:-1, 1:-1] - coarse[0, 1:-1, 1:-1]).mean() < 150
    )  # a triangle, not a box
