"""Digital numbers of the Gaofen cameras as radiance or as reflectance above the air, by the producer's published coefficients.

`calibration.json` holds them by satellite, camera and year, each with its source; there is none for a year or camera that is
not in it. Bands are those of the files: blue, green, red, near infrared.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import cos, pi, radians
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.config import datasets
from dithc.data.scene import RADIANCE_SCALE, REFLECTANCE_SCALE, Array, Reason, Refused, Units, stored_physical

TABLE = Path(__file__).with_name("calibration.json")
MOST_ZENITH_DEGREES = 85.0
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Acquisition:
    """What the metadata says that decides a calibration; None where it does not."""

    satellite: str | None = None
    sensor: str | None = None
    time: datetime | None = None
    solar_zenith: float | None = None


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Stored pixels (C, H, W) int16, and what was done, for the table."""

    pixels: Array
    units: Units
    scale: float
    facts: dict[str, Any]


def calibrate(pixels: Array, invalid: Array, *, source: datasets.Gaofen2, of: Acquisition) -> Calibrated:
    """Calibrate digital numbers (C, H, W) as `source.calibrate` says; 0 where `invalid` (H, W).

    Raises Refused without coefficients or required metadata of the acquisition.
    """
    gain, offset, said = _coefficients(source, of)
    facts: dict[str, Any] = {"offset_source": said, "offsets": offset.tolist(), "gains": gain.tolist()}
    if source.calibrate == "radiance":
        units: Units = "radiance"
        scale, per_radiance = RADIANCE_SCALE, np.ones(len(gain))
    else:
        units, scale = "reflectance", REFLECTANCE_SCALE
        per_radiance = pi / _sunlight(source, of)
    stored = np.empty(pixels.shape, dtype=np.int16)  # (C, H, W)
    for band, target, *numbers in zip(pixels, stored, gain, offset, per_radiance, strict=True):
        values = (band * numbers[0] + numbers[1]) * numbers[
            2
        ]  # (H, W), a band at a time: float64 takes four times the room
        target[:] = stored_physical(values, scale=scale, invalid=invalid, units=units)
    return Calibrated(pixels=stored, units=units, scale=scale, facts=facts)


def sun_distance(time: datetime) -> float:
    """Distance of the Earth from the Sun in astronomical units, to 1e-4 (The Astronomical Almanac, section C, low-precision
    formulas for the Sun)."""
    days = (time.replace(tzinfo=None) - datetime(2000, 1, 1, 12)).total_seconds() / 86_400
    anomaly = radians(357.528 + 0.9856003 * days)
    return 1.00014 - 0.01671 * cos(anomaly) - 0.00014 * cos(2 * anomaly)


def _coefficients(source: datasets.Gaofen2, of: Acquisition) -> tuple[F64, F64, str]:
    """Gain and offset of each band, and where they are from."""
    if source.coefficients is not None:
        gain = np.array(source.coefficients.gain)
        return gain, np.array(source.coefficients.offset or [0.0] * len(gain)), "config"
    year = None if of.time is None else str(of.time.year)
    of_camera = table()["gains"].get(of.satellite, {}).get(of.sensor, {})
    found = of_camera.get(year)
    if found is None:
        raise Refused(
            Reason.NOT_CALIBRATED,
            "no calibration is known",
            got=f"satellite {of.satellite}, camera {of.sensor}, year {year}",
            expected=f"a year of {', '.join(of_camera) or 'a camera that is known'} and XML beside the file that says so",
            fix="give the producer's numbers as `coefficients: {gain, offset}` in a data set for these scenes, "
            "or set `calibrate: none`",
        )
    gain = np.array(found["gain"])
    return gain, np.array(found.get("offset", [0.0] * len(gain))), f"published for {year}"


def _sunlight(source: datasets.Gaofen2, of: Acquisition) -> F64:
    """Sunlight on level ground above the air, for each band: irradiance at this distance, by the cosine of its angle."""
    if of.time is None or of.solar_zenith is None or not 0.0 <= of.solar_zenith <= MOST_ZENITH_DEGREES:
        raise Refused(
            Reason.NOT_CALIBRATED,
            "the sun's height is not known",
            got=f"time {of.time}, solar zenith {of.solar_zenith}",
            expected=f"CenterTime and SolarZenith (0 to {MOST_ZENITH_DEGREES:g} degrees) in the XML beside the file",
            fix="put the product's XML beside it, or set `calibrate: radiance`",
        )
    given = None if source.coefficients is None else source.coefficients.irradiance
    known = given or table()["irradiance"].get(of.satellite, {}).get(of.sensor)
    if known is None:
        raise Refused(
            Reason.NOT_CALIBRATED,
            "no solar irradiance of these bands is known",
            got=f"satellite {of.satellite}, camera {of.sensor}",
            expected="a camera whose bands are known",
            fix="give it as `coefficients: {gain, irradiance}`, or set `calibrate: radiance`",
        )
    return np.array(known) * cos(radians(of.solar_zenith)) / sun_distance(of.time) ** 2


@cache
def table() -> Any:
    """The published coefficients with their sources."""
    return json.loads(TABLE.read_text(encoding="utf-8"))
