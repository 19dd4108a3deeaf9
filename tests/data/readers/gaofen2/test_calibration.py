"""Calibration: published numbers, closed forms of radiance and reflectance, and rejections without coefficients."""

from datetime import datetime
from functools import partial
from math import cos, pi, radians
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.config import datasets
from dithc.data import synthesize
from dithc.data.readers import read_scenes
from dithc.data.readers.gaofen2.calibration import Acquisition, calibrate, sun_distance, table
from dithc.data.scene import Reason, SceneRejectedError

# Earth-Sun distances in astronomical units by day of year: Landsat 7 Science Data Users Handbook, table 11.4.
HANDBOOK = {1: 0.98331, 32: 0.98536, 60: 0.99084, 91: 0.99926, 121: 1.00756, 152: 1.01403, 182: 1.01667, 213: 1.01497}
HANDBOOK |= {242: 1.00969, 274: 1.00119, 305: 0.99253, 335: 0.98608, 365: 0.98333}
PMS1_2018 = Acquisition(satellite="GF2", sensor="PMS1", time=datetime(2018, 6, 1, 11), solar_zenith=30.0)
DN = np.array([100, 200, 300, 400], np.uint16).reshape(4, 1, 1)
run = partial(calibrate, DN, np.zeros((1, 1), dtype=bool))


def settings(**changes: Any) -> datasets.Gaofen2Source:
    return datasets.Gaofen2Source.model_validate({"kind": "gaofen2", "path": "x", "calibrate": "radiance", **changes})


def test_sun_distance_matches_the_landsat_handbook() -> None:
    for day, distance in HANDBOOK.items():
        assert abs(sun_distance(datetime.strptime(f"2019 {day}", "%Y %j")) - distance) < 3e-4


def test_radiance_is_gain_times_number_plus_offset() -> None:
    calibrated = run(source=settings(), metadata=PMS1_2018)
    expected = np.array([13.56, 34.72, 49.32, 71.52])  # 0.1356 x 100, 0.1736 x 200, 0.1644 x 300, 0.1788 x 400
    np.testing.assert_allclose(calibrated.pixels.ravel() * calibrated.scale, expected, atol=0.011)
    of_2014 = Acquisition(**{**vars(PMS1_2018), "time": datetime(2014, 10, 1)})
    assert abs(run(source=settings(), metadata=of_2014).pixels[0, 0, 0] * 0.02 - 14.9735) < 0.011


def test_reflectance_matches_the_closed_form() -> None:
    source = settings(calibrate="reflectance", coefficients={"gain": [0.1] * 4, "irradiance": [2000, 1800, 1500, 1000]})
    calibrated = run(source=source, metadata=PMS1_2018)
    distance = 1.01403  # 1 June
    expected = pi * np.array([10, 20, 30, 40]) * distance**2 / (np.array([2000, 1800, 1500, 1000]) * cos(radians(30)))
    np.testing.assert_allclose(calibrated.pixels.ravel() * calibrated.scale, expected, atol=1e-4)
    assert calibrated.units == "reflectance"


def test_invalid_pixels_stay_zero_and_valid_pixels_can_be_negative() -> None:
    source = settings(coefficients={"gain": [0.1] * 4, "offset": [-20.0] * 4})
    calibrated = calibrate(np.repeat(DN, 2, axis=2), np.array([[True, False]]), source=source, metadata=Acquisition())
    assert (calibrated.pixels[:, 0, 0] == 0).all()
    np.testing.assert_allclose(calibrated.pixels[:, 0, 1] * 0.02, [-10, 0, 10, 20])


@pytest.mark.parametrize(
    "case",
    [
        Acquisition(),
        Acquisition(satellite="GF2", sensor="PMS1", time=datetime(2023, 2, 13)),
        Acquisition(satellite="GF2", sensor="PMS3", time=datetime(2018, 2, 13)),
        Acquisition(satellite="GF7", sensor="MUX", time=datetime(2020, 2, 13)),
    ],
)
def test_years_and_cameras_without_published_gains_are_rejected(case: Acquisition) -> None:
    with pytest.raises(SceneRejectedError) as caught:
        run(source=settings(), metadata=case)
    assert caught.value.reason == Reason.NOT_CALIBRATED
    assert "coefficients" in caught.value.fix
    assert run(source=settings(coefficients={"gain": [0.2] * 4}), metadata=case).pixels.any()


@pytest.mark.parametrize(
    "changes",
    [{"solar_zenith": None}, {"solar_zenith": 89.0}, {"solar_zenith": -1.0}, {"satellite": "GF6", "sensor": "PMS"}],
)
def test_reflectance_without_sun_elevation_or_irradiance_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(SceneRejectedError) as caught:
        run(source=settings(calibrate="reflectance"), metadata=Acquisition(**{**vars(PMS1_2018), **changes}))
    assert "`calibrate: radiance`" in caught.value.fix


def test_coefficient_table_values_are_plausible_and_have_sources() -> None:
    known = table()
    assert set(known["sources"]) == {"gains", "irradiance"}
    assert all("commit " in text for text in known["sources"].values())
    for cameras in known["gains"].values():
        for years in cameras.values():
            for year, numbers in years.items():
                assert 2014 <= int(year) <= 2020
                assert len(numbers["gain"]) == 4
                assert all(0.02 < gain < 0.25 for gain in numbers["gain"])
                assert all(-1 < offset < 0 for offset in numbers.get("offset", []))
    # Solar irradiance of both cameras against a black body of 5778 K over their bands: at most 12% apart.
    for light in known["irradiance"]["GF2"].values():
        np.testing.assert_allclose(
            light, [black_body(*band) for band in ((450, 520), (520, 590), (630, 690), (770, 890))], rtol=0.12
        )


def black_body(first_nm: float, last_nm: float) -> float:
    """Return the mean black-body irradiance of the Sun between wavelengths at one astronomical unit, W m-2 um-1."""
    metres = np.linspace(first_nm, last_nm, 201) * 1e-9
    radiance = (
        2 * 6.62607e-34 * 2.99792e8**2 / metres**5 / np.expm1(6.62607e-34 * 2.99792e8 / (metres * 1.380649e-23 * 5778))
    )
    return float((radiance * pi * (6.957e8 / 1.495979e11) ** 2 * 1e-6).mean())


def test_scene_is_calibrated_with_the_camera_and_date_of_the_xml(tmp_path: Path) -> None:
    synthesize("gaofen2", tmp_path / "files", seed=1, scenes=1, size=64)
    plain, radiance, reflectance = (
        next(iter(read_scenes(settings(path=str(tmp_path / "files"), calibrate=mode), tmp_path / "files")))
        for mode in ("none", "radiance", "reflectance")
    )
    gains = np.array([0.1378, 0.1778, 0.1700, 0.1858])  # PMS1 of 2020
    valid = plain.mask > 0
    expected = plain.pixels * gains[:, None, None]
    np.testing.assert_allclose(radiance.pixels[:, valid] * 0.02, expected[:, valid], atol=0.011)
    assert radiance.properties["gains"] == gains.tolist()
    assert radiance.units == "radiance"
    assert reflectance.scale == 1e-4
    assert 0.02 < np.median(reflectance.pixels[2, valid]) * 1e-4 < 0.3
    (xml,) = (tmp_path / "files").glob("*.xml")
    xml.unlink()
    (rejection,) = read_scenes(settings(path=str(tmp_path / "files")), tmp_path / "files")
    assert rejection.error.reason == Reason.NOT_CALIBRATED


@pytest.mark.parametrize(
    "changes",
    [
        {"calibrate": "none", "coefficients": {"gain": [1.0] * 4}},
        {"units": "byte"},
        {"coefficients": {"gain": [1.0] * 3}},
        {"bands": ["R", "G", "B"]},
        {"bands": ["R"], "coefficients": {"gain": [1.0]}, "calibrate": "reflectance"},
        {"coefficients": {"gain": []}},
    ],
)
def test_contradictory_calibration_settings_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"coefficients|units"):
        settings(**changes)
