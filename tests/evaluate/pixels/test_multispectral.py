"""Pixel statistics equal direct computation over all values, for any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from dithc.core.logging import UserError
from dithc.data import products
from dithc.engine.comm import Group
from dithc.evaluate import measure_pixels
from dithc.evaluate.pixels import multispectral
from dithc.evaluate.pixels.band_roles import INDICES, band_of, index_bands
from dithc.evaluate.pixels.pixel_file import FILE, read
from dithc.evaluate.pixels.spectra import radial_power

INFO: dict[str, Any] = {
    "kind": "sentinel2",
    "bands": ["B03", "B04", "B08"],
    "units": "reflectance",
    "dtype": "int16",
    "scale": 1e-4,
    "offset": 0.0,
}
BANDS = products.Bands.of(INFO)


def scenes(seed: int, count: int = 40, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated bands of three classes with a few negative numbers."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    ground = rng.normal(800, 300 + 60 * seed, (count, 1, size, size)) + 250 * labels[:, None, None, None]
    bands = ground * [[[[1.0]], [[0.8]], [[2.5]]]] + rng.normal(0, 90, (count, 3, size, size))
    return np.rint(bands).astype(np.int16), labels


def measure_set(folder: Path, images: np.ndarray, labels: np.ndarray, *, bands: products.Bands = BANDS) -> Any:
    measure_pixels(images.__getitem__, labels, folder, bands=bands, set_hash="s", group=Group())
    return read(folder)


@pytest.fixture
def sides(tmp_path: Path) -> list[Any]:
    for name in "ab":
        (tmp_path / name).mkdir()
    return [measure_set(tmp_path / name, *scenes(seed)) for seed, name in enumerate("ab")]


def test_band_metrics_equal_direct_computation_over_all_values(sides: list[Any]) -> None:
    found = multispectral.of_bands(*sides)
    flat = [(scenes(seed)[0] * 1e-4).transpose(1, 0, 2, 3).reshape(3, -1) for seed in (0, 1)]
    for index, band in enumerate(BANDS.names):
        assert found["wasserstein"][band] == pytest.approx(
            wasserstein_distance(flat[0][index], flat[1][index]), rel=1e-9
        )
    np.testing.assert_allclose(found["correlation"]["generated"], np.corrcoef(flat[1]), rtol=1e-9)
    difference = np.abs(np.corrcoef(flat[0]) - np.corrcoef(flat[1]))[np.triu_indices(3, 1)].mean()
    assert found["correlation_difference"] == pytest.approx(difference, rel=1e-6)
    a, b = (one.mean(axis=1) for one in flat)
    angle = np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b)), a @ b))
    assert found["spectral_angle_deg"] == pytest.approx(angle, rel=1e-6)
    assert set(found["spectral_angle_deg_by_class"]) == {"0", "1", "2"}


def test_index_metrics_equal_direct_computation_over_all_values(sides: list[Any]) -> None:
    found = multispectral.of_indices(*sides)
    values = []
    for seed in (0, 1):
        green, red, infrared = (scenes(seed)[0] * 1e-4).transpose(1, 0, 2, 3).reshape(3, -1)
        total = {"NDVI": infrared + red, "NDWI": green + infrared}
        part = {"NDVI": infrared - red, "NDWI": green - infrared}
        values.append({name: np.clip(part[name] / total[name], -1, 1)[total[name] > 0] for name in total})
    for name in ("NDVI", "NDWI"):
        expected = wasserstein_distance(values[0][name], values[1][name])
        assert found[name]["wasserstein"] == pytest.approx(expected, abs=1e-3)  # a part of the histogram
        quantiles = np.quantile(values[1][name], multispectral.QUANTILES)
        np.testing.assert_allclose(found[name]["quantiles"]["generated"], quantiles, atol=2e-3)
        assert sum(found[name]["histogram"]["real"]) == len(values[0][name])
    assert "absent" not in found


def test_spectra_equal_the_mean_of_image_spectra(sides: list[Any]) -> None:
    found = multispectral.of_spectra(*sides)
    expected = [np.mean([radial_power(image * 1e-4) for image in scenes(seed)[0]], axis=0) for seed in (0, 1)]
    np.testing.assert_allclose(found["power"]["generated"], expected[1], rtol=1e-4)
    decibels = np.sqrt(((10 * np.log10(expected[0] / expected[1])) ** 2).mean(axis=1))
    np.testing.assert_allclose(list(found["log_spectral_distance_db"].values()), decibels, rtol=1e-3)


def test_distance_of_a_set_from_itself_is_zero(sides: list[Any]) -> None:
    bands, indices = multispectral.of_bands(sides[0], sides[0]), multispectral.of_indices(sides[0], sides[0])
    assert set(bands["wasserstein"].values()) == {0.0}
    assert bands["spectral_angle_deg"] == pytest.approx(0.0, abs=1e-5)
    assert (bands["correlation_difference"], indices["NDVI"]["wasserstein"]) == (0.0, 0.0)


def test_distance_of_a_brighter_set_equals_the_offset(tmp_path: Path) -> None:
    images, labels = scenes(0)
    sides = []
    for name, added in (("a", 0), ("b", 123)):
        (tmp_path / name).mkdir()
        sides.append(measure_set(tmp_path / name, images + np.int16(added), labels))
    found = multispectral.of_bands(*sides)
    assert list(found["wasserstein"].values()) == pytest.approx([0.0123] * 3)
    assert list(multispectral.of_spectra(*sides)["log_spectral_distance_db"].values()) == pytest.approx(
        [0] * 3, abs=1e-3
    )


def test_existing_pixel_statistics_are_reused(tmp_path: Path) -> None:
    images, labels = scenes(0)
    measure_set(tmp_path, images, labels)
    before = (tmp_path / FILE).read_bytes()

    def fail_to_read(_: np.ndarray) -> np.ndarray:
        raise AssertionError("images were read")

    measure_pixels(fail_to_read, labels, tmp_path, bands=BANDS, set_hash="s", group=Group())
    assert (tmp_path / FILE).read_bytes() == before
    with pytest.raises(AssertionError):
        measure_pixels(fail_to_read, labels, tmp_path, bands=BANDS, set_hash="another", group=Group())
    (tmp_path / FILE).write_bytes(before[:-90])
    assert measure_set(tmp_path, images, labels).spectra == 40
    assert (tmp_path / FILE).read_bytes() == before


def test_index_without_bands_is_absent_with_a_reason(tmp_path: Path) -> None:
    images, labels = scenes(0)
    bands = products.Bands.of(INFO | {"bands": ["B03", "B04", "B05"]})
    pixels = measure_set(tmp_path, images, labels, bands=bands)
    found = multispectral.of_indices(pixels, pixels)
    assert list(found) == ["absent"]
    assert "NDVI: no band is near infrared (790 to 880 nm)" in found["absent"][0]


@pytest.mark.parametrize(
    ("kind", "names", "expected"),
    [
        ("sentinel2", ["B02", "B03", "B04", "B05", "B08", "B8A", "B09"], {"NDVI": (4, 2), "NDWI": (1, 4)}),
        ("sentinel2", ["B03", "B04", "B8A"], {"NDVI": (2, 1), "NDWI": (0, 2)}),
        ("gaofen2", ["B", "G", "R", "NIR"], {"NDVI": (3, 2), "NDWI": (1, 3)}),
        ("image-folder", ["R", "G", "B"], {"NDVI": None, "NDWI": None}),
    ],
)
def test_bands_of_indices_are_selected_by_wavelength(kind: str, names: list[str], expected: dict[str, Any]) -> None:
    bands = products.Bands.of(INFO | {"kind": kind, "bands": names})
    assert {name: index_bands(name, bands) for name in INDICES} == expected
    assert band_of("red", bands) is None or expected["NDVI"]


def test_sets_with_different_bands_are_rejected(tmp_path: Path, sides: list[Any]) -> None:
    other = measure_set(tmp_path, *scenes(0), bands=products.Bands.of(INFO | {"bands": ["B02", "B04", "B08"]}))
    with pytest.raises(UserError, match="B03, B04, B08"):
        multispectral.of_bands(sides[0], other)


def test_black_images_have_no_spectral_angle(sides: Any, tmp_path: Path) -> None:
    assert multispectral.spectral_angle(np.zeros(3), np.ones(3)) is None
    images, labels = scenes(0)
    black = measure_set(tmp_path / "black", np.zeros_like(images), labels)
    assert multispectral.of_bands(black, black)["spectral_angle_deg"] is None
