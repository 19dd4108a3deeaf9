"""A scene in memory: pixels on one grid with their mask, or the reason for its rejection."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dithc.data.geometry import GeoTransform

Array = npt.NDArray[Any]
Units = Literal["reflectance", "radiance", "dn", "byte"]

REFLECTANCE_SCALE = 1e-4
"""Step of int16 reflectance, equal to Sentinel-2's digital numbers for any quantification of the file."""

RADIANCE_SCALE = 0.02
"""Step of int16 radiance (W m-2 sr-1 um-1): an eighth of a Gaofen-2 digital number, up to 655."""


NODATA_TOLERANCE = 2.0**-22
"""Largest difference of floats that GDAL treats as equal no-data values, relative to their sum (ARE_REAL_EQUAL)."""


class Reason(StrEnum):
    """Reasons why a scene file (first group) or a tile (second group) is not used."""

    READ_ERROR = "read_error"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    MISSING_BAND = "missing_band"
    INCOMPLETE = "incomplete"
    BAND_COUNT = "band_count"
    CRS_MISSING = "crs_missing"
    CRS_WRONG = "crs_wrong"
    CRS_MIXED = "crs_mixed"
    RESOLUTION_MISMATCH = "resolution_mismatch"
    GRID_MISMATCH = "grid_mismatch"
    ALL_NODATA = "all_nodata"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_LAYOUT = "wrong_layout"
    WRONG_LABEL = "wrong_label"
    UNITS_CONTRADICTION = "units_contradiction"
    OFFSET_CONTRADICTION = "offset_contradiction"
    TAGS_CONTRADICTION = "tags_contradiction"
    OVERFLOW = "overflow"
    NOT_CALIBRATED = "not_calibrated"
    MISREGISTERED = "misregistered"

    SMALLER_THAN_TILE = "smaller_than_tile"
    TOO_LITTLE_VALID = "too_little_valid"
    TOO_CLOUDY = "too_cloudy"
    CONSTANT = "constant"
    ACROSS_SPLITS = "across_splits"


class Mask(IntEnum):
    """Values of a scene's mask."""

    INVALID = 0
    VALID = 1
    CLOUD = 2


class PixelBuffer:
    """Allocator of pixel arrays for readers: in memory, or in the final file (`stacks.FileCanvas`)."""

    def blank(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array for the pixels (C, H, W) of one scene."""
        return np.empty(shape, dtype)

    def release(self) -> None:
        """Declare that the pixels written so far are not read again."""


class SceneRejectedError(Exception):
    """Rejection of a file by a reader; ingestion records it and continues."""

    def __init__(self, reason: Reason, problem: str, *, got: object, expected: object, fix: str) -> None:
        super().__init__(f"{reason}: {problem}; got {got}; expected {expected}; fix: {fix}")
        self.reason, self.problem, self.fix = reason, problem, fix
        self.got, self.expected = str(got), str(expected)


@dataclass(frozen=True, kw_only=True)
class Georeference:
    """Georeference of pixels; without georeference, coordinate reference system and coefficients are None."""

    gsd_m: float  # pixel side in meters; 0 for images without georeference
    crs: str | None = None  # `EPSG:n` or well-known text
    epsg: int | None = None
    transform: GeoTransform | None = None  # affine coefficients (a, b, c, d, e, f)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One scene, ready to be stacked; raises SceneRejectedError without a valid pixel."""

    scene_id: str  # path below the source folder
    path: Path
    sha256: str  # of the file; for several files, of their names and hashes
    pixels: Array  # (C, H, W); physical = stored * scale + offset
    mask: Array  # (H, W) uint8 of `Mask`
    bands: list[str]
    place: Georeference
    units: str  # `Units`; of fields their own: one, or one for each band separated by ", "
    scale: float | list[float] = 1.0  # one, or one for each band
    offset: float | list[float] = 0.0
    label: int = 0
    properties: dict[str, Any] = field(default_factory=dict)  # columns of the table, such as satellite
    notes: tuple[str, ...] = ()  # counted per dataset, such as `grayscale`

    def __post_init__(self) -> None:
        if not self.mask.any():
            raise SceneRejectedError(
                Reason.ALL_NODATA,
                "no pixel is valid",
                got=f"{self.mask.size} pixels of no data, NaN or saturation",
                expected="pixels with data",
                fix="remove the file from the folder, or check the declared no-data value (`nodata`)",
            )


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A scene file that is not used, with its reason."""

    scene_id: str
    path: Path
    error: SceneRejectedError


def find_invalid(pixels: Array, *nodata: float | None, masked: Array | None) -> Array:
    """Return a mask of pixels (C, H, W) that are not finite, equal a no-data value, or are masked (H, W)."""
    invalid = ~np.isfinite(pixels) if pixels.dtype.kind in "fc" else np.zeros(pixels.shape, dtype=bool)
    for value in nodata:
        if value is not None:
            for band, bad in zip(pixels, invalid, strict=True):
                bad |= _equals_nodata(band, value)
    if masked is not None:
        invalid |= masked
    return invalid


def _equals_nodata(pixels: Array, value: float) -> Any:
    """Return a mask of pixels equal to the no-data value, by GDAL's comparison in the type of the pixels.

    Floats are equal within `NODATA_TOLERANCE`, so that text with fewer digits than the pixels matches. Sums of two of
    the largest numbers overflow, and these are equal too. Integers are compared with the integer part; a value outside
    their range never matches.
    """
    kind, dtype = pixels.dtype.kind, pixels.dtype
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            nodata = np.float64(value).astype(dtype)
            same = pixels == nodata
            if dtype.itemsize > 2:
                same |= np.abs(pixels - nodata) < NODATA_TOLERANCE * np.abs(pixels + nodata)
            return same
    if kind in "iu":
        limits = np.iinfo(dtype)
        return pixels == int(value) if limits.min <= value <= limits.max else False
    return pixels == value


def stored_physical(values: Array, *, scale: float, invalid: Array, units: str) -> Array:
    """Return values (..., H, W) as int16 in steps of `scale`, 0 if invalid; SceneRejectedError for NaN or overflow."""
    return _as_int16(np.rint(np.where(invalid, 0.0, values / scale)), scale=scale, quantity=f"a {units}")


def stored_reflectance(digital: Array, *, offset: float, per_unit: float, invalid: Array, quantity: str) -> Array:
    """Apply the offset and the scale: (digital + offset) / per_unit, as int16 in steps of `REFLECTANCE_SCALE`; 0 if invalid."""
    factor = 1.0 / (per_unit * REFLECTANCE_SCALE)
    fits = digital.dtype.kind in "iu" and digital.dtype.itemsize <= 2 and abs(offset) < 1 << 30  # sums fit into int32
    values: Array = digital.astype(np.int32 if fits else np.float64)
    if offset:
        values = values + (int(offset) if float(offset).is_integer() else offset)
    if factor != 1.0 or values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            values = np.rint(values * factor)
    return _as_int16(np.where(invalid, 0, values), scale=REFLECTANCE_SCALE, quantity=quantity)


def _as_int16(steps: Array, *, scale: float, quantity: str) -> Array:
    low, high = steps.min(), steps.max()
    limits = np.iinfo(np.int16)
    if not (limits.min <= low and high <= limits.max):  # true for NaN too
        raise SceneRejectedError(
            Reason.OVERFLOW,
            f"{quantity} does not fit the stored type int16",
            got=f"{low * scale:.4g} to {high * scale:.4g}",
            expected=f"{limits.min * scale:.4g} to {limits.max * scale:.4g}",
            fix="check the coefficients, `units`, `offset` and `quantification`; declare the no-data value as `nodata`",
        )
    return steps.astype(np.int16)
