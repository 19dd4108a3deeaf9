"""Calibration of Gaofen digital numbers to radiance or top-of-atmosphere reflectance.

`calibration.json` lists the producer's published coefficients by satellite, camera and year, with their sources.
Cameras and years that are not listed cannot be calibrated. Bands are in file order: blue, green, red, near infrared.
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
from dithc.data.scene import (
    RADIANCE_SCALE,
    REFLECTANCE_SCALE,
    Array,
    Reason,
    SceneRejectedError,
    Units,
    stored_physical,
)

TABLE = Path(__file__).with_name("calibration.json")
MAX_ZENITH_DEGREES = 85.0
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Acquisition:
    """Acquisition metadata that a calibration requires; None for values missing in the product."""

    satellite: str | None = None
    sensor: str | None = None
    time: datetime | None = None
    solar_zenith: float | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Stored pixels (C, H, W) int16 and the properties of the calibration for the table of scenes."""

    pixels: Array
    units: Units
    scale: float
    properties: dict[str, Any]


def calibrate(pixels: Array, invalid: Array, *, source: datasets.Gaofen2Source, metadata: Acquisition) -> Calibration:
    """Calibrate digital numbers (C, H, W) by `source.calibrate`; 0 in `invalid` pixels (H, W). SceneRejectedError without
    coefficients."""
    gain, offset, offset_source = _coefficients(source, metadata)
    properties: dict[str, Any] = {"offset_source": offset_source, "offsets": offset.tolist(), "gains": gain.tolist()}
    if source.calibrate == "radiance":
        units: Units = "radiance"
        scale, per_radiance = RADIANCE_SCALE, np.ones(len(gain))
    else:
        units, scale = "reflectance", REFLECTANCE_SCALE
        per_radiance = pi / _sunlight(source, metadata)
    stored = np.empty(pixels.shape, dtype=np.int16)  # (C, H, W)
    for band, target, *numbers in zip(pixels, stored, gain, offset, per_radiance, strict=True):
        # One band at a time, because float64 needs four times the memory.
        values = (band * numbers[0] + numbers[1]) * numbers[2]  # (H, W)
        target[:] = stored_physical(values, scale=scale, invalid=invalid, units=units)
    return Calibration(pixels=stored, units=units, scale=scale, properties=properties)


def sun_distance(time: datetime) -> float:
    """Return the Earth-Sun distance in astronomical units, to 1e-4 (The Astronomical Almanac, section C)."""
    days = (time.replace(tzinfo=None) - datetime(2000, 1, 1, 12)).total_seconds() / 86_400
    anomaly = radians(357.528 + 0.9856003 * days)
    return 1.00014 - 0.01671 * cos(anomaly) - 0.00014 * cos(2 * anomaly)


def _coefficients(source: datasets.Gaofen2Source, metadata: Acquisition) -> tuple[F64, F64, str]:
    if source.coefficients is not None:
        gain = np.array(source.coefficients.gain)
        return gain, np.array(source.coefficients.offset or [0.0] * len(gain)), "config"
    year = None if metadata.time is None else str(metadata.time.year)
    camera_gains = table()["gains"].get(metadata.satellite, {}).get(metadata.sensor, {})
    coefficients = camera_gains.get(year)
    if coefficients is None:
        raise SceneRejectedError(
            Reason.NOT_CALIBRATED,
            "the acquisition has no published calibration",
            got=f"satellite {metadata.satellite}, camera {metadata.sensor}, year {year}",
            expected=f"XML next to the file, with a published year: {', '.join(camera_gains) or 'none for this camera'}",
            fix="set `coefficients: {gain, offset}` from the producer in a dataset for these scenes, "
            "or set `calibrate: none`",
        )
    gain = np.array(coefficients["gain"])
    return gain, np.array(coefficients.get("offset", [0.0] * len(gain))), f"published for {year}"


def _sunlight(source: datasets.Gaofen2Source, metadata: Acquisition) -> F64:
    """Return top-of-atmosphere irradiance on level ground per band, at this Earth-Sun distance and solar zenith."""
    time, zenith = metadata.time, metadata.solar_zenith
    if time is None or zenith is None or not 0.0 <= zenith <= MAX_ZENITH_DEGREES:
        raise SceneRejectedError(
            Reason.NOT_CALIBRATED,
            "the solar zenith angle is unknown",
            got=f"time {time}, solar zenith {zenith}",
            expected=f"CenterTime and SolarZenith (0 to {MAX_ZENITH_DEGREES:g} degrees) in the XML next to the file",
            fix="put the product's XML next to it, or set `calibrate: radiance`",
        )
    override = None if source.coefficients is None else source.coefficients.irradiance
    irradiance = override or table()["irradiance"].get(metadata.satellite, {}).get(metadata.sensor)
    if irradiance is None:
        raise SceneRejectedError(
            Reason.NOT_CALIBRATED,
            "the solar irradiance of these bands is unknown",
            got=f"satellite {metadata.satellite}, camera {metadata.sensor}",
            expected="a camera with published irradiance",
            fix="set `coefficients: {gain, irradiance}`, or set `calibrate: radiance`",
        )
    return np.array(irradiance) * cos(radians(zenith)) / sun_distance(time) ** 2


@cache
def table() -> Any:
    return json.loads(TABLE.read_text(encoding="utf-8"))
