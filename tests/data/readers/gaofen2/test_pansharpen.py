"""Pansharpening: measures against closed forms, cases with exact results, and products with available truth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage

from dithc.config import datasets
from dithc.core.image_quality import block_mean
from dithc.data.grids import Grid
from dithc.data.raster import read_raster
from dithc.data.readers.gaofen2.orthorectify import orthorectify, read_heights
from dithc.data.readers.gaofen2.pansharpen import gsa, quality, reduced_resolution, shift_between
from dithc.data.readers.gaofen2.rpc import read_rpc
from dithc.data.scene import Reason
from dithc.data.synthetic.gaofen2 import GaofenScene, digital_numbers
from tests.data.readers.scene_readers import reader
from tests.inputs.gaofen2_raw import RawProduct, rpb_text

RNG = np.random.default_rng(2)
SIZE, SEED, GSD_M = 48, 5, 3.24
SHARP = {"pansharpen": "gsa", "gsd_m": 0.81}


def draw_textured_bands(count: int, side: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack(
        [scipy.ndimage.gaussian_filter(RNG.standard_normal((side, side)), 1.0) * 300 + 400 for _ in range(count)]
    ).astype(np.float32)


_, read_one, read_error = reader(datasets.Gaofen2Source, kind="gaofen2", **SHARP)


@pytest.fixture
def product(raw_gaofen: Path) -> Path:
    return next(path for path in (raw_gaofen / "products").iterdir() if path.is_dir())


@pytest.fixture
def dem(raw_gaofen: Path, product: Path) -> str:
    return str(raw_gaofen / "terrain" / f"{product.name}.tif")


def test_quality_measures_of_the_reference_are_perfect() -> None:
    truth, valid = draw_textured_bands(3, 64), np.ones((64, 64), dtype=bool)
    best = quality(truth, truth, ratio=4, valid=valid)
    assert (best.ergas, best.q) == (0.0, pytest.approx(1.0))
    assert best.sam_degrees < 1e-4


def test_quality_measures_match_closed_forms() -> None:
    truth, valid = draw_textured_bands(3, 64) + 500, np.ones((64, 64), dtype=bool)
    valid[:, 32:] = False
    truth[:, :, 32:] = np.nan
    brighter = truth * np.float32(1.1)
    found = quality(brighter, truth, ratio=4, valid=valid)
    values = truth[:, valid].astype(np.float64)
    relative = 0.1 * np.sqrt((values**2).mean(axis=1)) / values.mean(axis=1)
    assert found.ergas == pytest.approx(100 / 4 * np.sqrt((relative**2).mean()), rel=1e-4)
    assert found.sam_degrees < 0.01  # brightness does not change the spectral angle
    assert found.q == pytest.approx((2 * 1.1 / (1 + 1.1**2)) ** 2, rel=1e-4)  # luminance times contrast
    turned = np.stack([truth[1], truth[0], truth[2]])
    first, second = values, values[[1, 0, 2]]
    cosine = (first * second).sum(axis=0) / (np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=0))
    expected = np.rad2deg(np.arccos(cosine)).mean()
    assert quality(turned, truth, ratio=4, valid=valid).sam_degrees == pytest.approx(expected, rel=1e-4)


def test_bands_linear_in_the_panchromatic_image_are_restored() -> None:
    """The detail is complete if every band and the panchromatic image are linear functions of one pattern."""
    pattern = draw_textured_bands(1, 96)[0]
    truth = np.stack([pattern * np.float32(slope) + 100 for slope in (0.5, 1.0, 2.0)])
    pan = pattern * np.float32(1.3) + 20
    blurred = np.stack(
        [scipy.ndimage.zoom(block_mean(band, 4), 4, order=1, grid_mode=True, mode="nearest") for band in truth]
    )
    fine, coarse = np.ones((96, 96), dtype=bool), np.ones((24, 24), dtype=bool)
    settings = {
        "coarse_bands": block_mean(truth, 4),
        "coarse_pan": block_mean(pan, 4),
        "valid": fine,
        "coarse_valid": coarse,
    }
    sharp = gsa(blurred, pan, **settings)
    errors = [np.abs(image - truth).mean() for image in (sharp, blurred)]
    assert errors[0] < 0.05 * errors[1]


def test_gain_and_offset_of_the_panchromatic_image_have_no_effect() -> None:
    bands, pan = draw_textured_bands(4, 64), draw_textured_bands(1, 64)[0]
    fine, coarse = np.ones((64, 64), dtype=bool), np.ones((16, 16), dtype=bool)
    images = [
        gsa(
            bands,
            one,
            coarse_bands=block_mean(bands, 4),
            coarse_pan=block_mean(one, 4),
            valid=fine,
            coarse_valid=coarse,
        )
        for one in (pan, 0.25 * pan + 77)
    ]
    np.testing.assert_allclose(images[0], images[1], rtol=1e-3, atol=0.1)


def test_constant_panchromatic_image_preserves_the_bands() -> None:
    bands, flat = draw_textured_bands(4, 64), np.full((64, 64), 300, np.float32)
    fine, coarse = np.ones((64, 64), dtype=bool), np.ones((16, 16), dtype=bool)
    sharp = gsa(
        bands, flat, coarse_bands=block_mean(bands, 4), coarse_pan=block_mean(flat, 4), valid=fine, coarse_valid=coarse
    )
    np.testing.assert_allclose(sharp, bands, atol=0.1)


@pytest.mark.parametrize(("side", "is_measured"), [(12, True), (8, False), (3, False)])
def test_quality_is_none_for_small_images(side: int, is_measured: bool) -> None:
    bands, pan, valid = (
        draw_textured_bands(4, side),
        draw_textured_bands(1, 4 * side)[0],
        np.ones((side, side), dtype=bool),
    )
    assert (reduced_resolution(bands, pan, ratio=4, coarse_valid=valid) is not None) == is_measured


def test_sharpened_product_is_closer_to_the_reference_than_interpolated(product: Path, dem: str) -> None:
    scene = read_one(product, dem=dem)
    assert scene.place.gsd_m == 0.81
    assert scene.properties["pansharpened"] == "gsa"
    assert np.hypot(*scene.properties["pan_shift_m"]) < 0.3  # a tenth of a multispectral pixel
    assert 0 < scene.properties["ergas"] < 10
    raw = RawProduct(GaofenScene(index=0, size=SIZE, gsd=GSD_M), SEED)
    grid = Grid(crs="EPSG:32650", epsg=32650, transform=scene.place.transform or (0,) * 6, shape=scene.pixels.shape[1:])
    heights = read_heights(Path(dem), height_m=0.0)
    truth = orthorectify(digital_numbers(raw.sensor_image()), raw.rpc(pan=True), grid=grid, heights=heights)
    coarse, info_rpc = _read_multispectral(product)
    plain = orthorectify(coarse, info_rpc, grid=grid, heights=heights)
    inner = scipy.ndimage.binary_erosion((scene.mask > 0) & truth.any(axis=0) & plain.any(axis=0), iterations=8)
    sharp, interpolated = (
        quality(image.astype(np.float32), truth.astype(np.float32), ratio=4, valid=inner)
        for image in (scene.pixels, plain)
    )
    print(f"against the truth: sharpened {sharp}, interpolated {interpolated}")
    assert sharp.ergas < 0.8 * interpolated.ergas
    assert sharp.sam_degrees < interpolated.sam_degrees


def _read_multispectral(product: Path) -> Any:
    image = next(product.glob("*-MSS1.tiff"))
    return read_raster(image)[0], read_rpc(image.with_suffix(".rpb"))


def test_shifted_panchromatic_image_is_rejected_by_the_measured_shift(product: Path, dem: str) -> None:
    coefficients = next(product.glob("*-PAN1.rpb"))
    rpc = read_rpc(coefficients)
    coefficients.write_text(rpb_text(type(rpc)(**{**vars(rpc), "samp_off": rpc.samp_off + 6.0})))
    assert read_error(product, dem=dem).reason == Reason.MISREGISTERED
    accepted = read_one(product, dem=dem, max_shift=2.0)
    assert np.hypot(*accepted.properties["pan_shift_m"]) == pytest.approx(
        6 * 0.81, abs=1.1
    )  # in windows of 32 pixels of 3.24 m


def test_product_without_panchromatic_coefficients_is_rejected(product: Path, dem: str) -> None:
    next(product.glob("*-PAN1.rpb")).unlink()
    assert read_error(product, dem=dem).reason == Reason.INCOMPLETE
    read_one(product, dem=dem, pansharpen="none")


def test_real_images_are_aligned_and_sharpening_lowers_ergas(real_data: Callable[[str], Path]) -> None:
    """The bands of the four real scenes are at the panchromatic grid, so the protocol makes them four times coarser."""
    folder = real_data("gf2_4band")
    for path in sorted((folder / "ms").glob("*.npy")):
        bands = np.moveaxis(np.load(path), 2, 0).astype(np.float32)
        pan = np.load(folder / "pan" / path.name).astype(np.float32)
        height, width = (side // 16 * 16 for side in pan.shape)
        bands, pan = bands[:, :height, :width], pan[:height, :width]
        valid = (bands > 0).any(axis=0) & (pan > 0)
        found = shift_between(bands.mean(axis=0, dtype=np.float64), pan.astype(np.float64), valid)
        coarse_valid = block_mean(valid.astype(np.float32), 4) == 1.0
        sharp, plain = reduced_resolution(block_mean(bands, 4), pan, ratio=4, coarse_valid=coarse_valid)
        print(f"{path.name}: shift {found}, sharpened {sharp}, interpolated {plain}")
        assert found is not None
        assert np.hypot(found.down, found.right) < 2.0
        assert sharp.ergas < plain.ergas


@pytest.mark.parametrize(
    "changes", [{"gsd_m": 4.0, "height_m": 1.0}, {"gsd_m": 1.0}, {"gsd_m": 1.0, "height_m": 1.0, "units": "byte"}]
)
def test_invalid_pansharpen_settings_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pansharpen"):
        datasets.Gaofen2Source.model_validate({"kind": "gaofen2", "path": "x", "pansharpen": "gsa", **changes})
