"""Rational polynomial coefficients (RPC): the map between sensor pixels and places on the ground.

Line and sample are quotients of cubic polynomials of longitude, latitude and height above the ellipsoid, all
normalized to about [-1, 1] (NIMA, The Compendium of Controlled Extensions for the NITF, STDI-0002, 8.2.4: RPC00B).
They are read from the producer's `.rpb` or `_rpc.txt`. GDAL does not read them, because its access to sidecar files is
disabled.
"""

import os
import re
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.core.logging import UserError, user_error
from dithc.data.file_checks import open_regular

F64 = npt.NDArray[np.float64]
TERMS = 20
STEP = 1e-4
"""Difference of normalized coordinates for derivatives: at most a pixel."""
NEWTON_STEPS = 20
CLOSE_PIXELS = 1e-4
MAX_BYTES = 1 << 16
"""Twenty times the largest file of either format."""
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
ENDINGS = (".rpb", ".RPB", "_rpc.txt", "_RPC.TXT", "_rpc.TXT")


@dataclass(frozen=True, kw_only=True)
class Rpc:
    """Coefficients of one image, named as in the RPC00B extension in lower case.

    Line and sample 0 are the center of the first pixel. Heights are in meters above the WGS84 ellipsoid.
    """

    line_off: float
    samp_off: float
    lat_off: float
    long_off: float
    height_off: float
    line_scale: float
    samp_scale: float
    lat_scale: float
    long_scale: float
    height_scale: float
    line_num_coeff: tuple[float, ...]
    line_den_coeff: tuple[float, ...]
    samp_num_coeff: tuple[float, ...]
    samp_den_coeff: tuple[float, ...]

    def project(self, longitude: F64, latitude: F64, height: F64) -> tuple[F64, F64]:
        """Return line and sample of ground points (degrees, meters above the ellipsoid) of any common shape."""
        x = (longitude - self.long_off) / self.long_scale
        y = (latitude - self.lat_off) / self.lat_scale
        z = (height - self.height_off) / self.height_scale
        terms = _terms(x, y, z)
        line = _sum(self.line_num_coeff, terms) / _sum(self.line_den_coeff, terms)
        sample = _sum(self.samp_num_coeff, terms) / _sum(self.samp_den_coeff, terms)
        return line * self.line_scale + self.line_off, sample * self.samp_scale + self.samp_off

    def locate(self, line: F64, sample: F64, height: F64) -> tuple[F64, F64]:
        """Return longitude and latitude of pixels at given heights by Newton's method; UserError without a solution."""
        longitude, latitude = np.full_like(line, self.long_off), np.full_like(line, self.lat_off)
        error = np.inf
        for _ in range(NEWTON_STEPS):
            with np.errstate(all="ignore"):
                base = self.project(longitude, latitude, height)
                down, right = line - base[0], sample - base[1]
                error = float(np.hypot(down, right).max())
                if error < CLOSE_PIXELS or not isfinite(error):
                    break
                by_x = self.project(longitude + STEP * self.long_scale, latitude, height)
                by_y = self.project(longitude, latitude + STEP * self.lat_scale, height)
                line_x, sample_x = by_x[0] - base[0], by_x[1] - base[1]
                line_y, sample_y = by_y[0] - base[0], by_y[1] - base[1]
                area = (line_x * sample_y - line_y * sample_x) / STEP
                longitude = longitude + (down * sample_y - right * line_y) / area * self.long_scale
                latitude = latitude + (right * line_x - down * sample_x) / area * self.lat_scale
        if not error < CLOSE_PIXELS:
            raise user_error(
                "the coefficients do not lead to a place on the ground",
                got=f"pixels missed by {error:g} after {NEWTON_STEPS} steps",
                expected="one place for every pixel at a height",
                fix="unpack or download the product again",
            )
        return longitude, latitude

    @property
    def epsg(self) -> int:
        """EPSG code of the UTM zone at the center of the image."""
        zone = int((self.long_off + 180.0) // 6.0) % 60 + 1
        return (32600 if self.lat_off >= 0.0 else 32700) + zone


def _terms(x: F64, y: F64, z: F64) -> list[F64]:
    """Return the 20 terms in the order of RPC00B; x is the longitude, y the latitude, z the height."""
    xx, yy, zz = x * x, y * y, z * z
    second = [x * y, x * z, y * z, xx, yy, zz]
    third = [x * y * z, x * xx, x * yy, x * zz, xx * y, y * yy, y * zz, xx * z, yy * z, z * zz]
    return [np.ones_like(x), x, y, z, *second, *third]


def _sum(coefficients: tuple[float, ...], terms: list[F64]) -> F64:
    total = np.zeros_like(terms[0])
    for coefficient, term in zip(coefficients, terms, strict=True):
        if coefficient:
            total += coefficient * term
    return total


def find_rpc(raster: Path) -> Path | None:
    """Return the coefficient file next to a raster, or None; raise UserError for several with different content."""
    candidates = (raster.with_name(f"{raster.stem}{ending}") for ending in ENDINGS)
    files = [path for path in candidates if os.path.lexists(path)]
    if any(read_rpc(path) != read_rpc(files[0]) for path in files[1:]):
        raise user_error(
            f"several files next to {raster} specify different geometries",
            got=", ".join(path.name for path in files),
            expected="one file of coefficients",
            fix="remove the files of other images from the folder",
        )
    return files[0] if files else None


def read_rpc(path: Path) -> Rpc:
    """Read `.rpb` (as in Gaofen products) or `_rpc.txt`, recognized by content; UserError for unusable numbers."""
    with open_regular(path) as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise _coefficient_error(path, got=f"more than {MAX_BYTES} bytes")
    entries = _numbers(text.decode("latin-1"))
    values: dict[str, float | tuple[float, ...]] = {}
    for field in fields(Rpc):
        numbers = entries.get(field.name, ())
        count = TERMS if field.name.endswith("coeff") else 1
        if len(numbers) != count:
            raise _coefficient_error(path, got=f"{len(numbers)} numbers for {field.name} instead of {count}")
        if not all(map(isfinite, numbers)) or (field.name.endswith("scale") and numbers[0] <= 0.0):
            raise _coefficient_error(path, got=f"{field.name} {numbers[0]:g}")
        values[field.name] = numbers if count > 1 else numbers[0]
    rpc = Rpc(**values)  # type: ignore[arg-type]
    if not (abs(rpc.lat_off) <= 84.0 and abs(rpc.long_off) <= 180.0):
        raise _coefficient_error(path, got=f"latitude {rpc.lat_off:g}, longitude {rpc.long_off:g}")
    return rpc


def _numbers(text: str) -> dict[str, tuple[float, ...]]:
    """Return numbers by normalized name, from `lineOffset = 1;`, `lineNumCoef = (1, 2);` or `LINE_NUM_COEFF_1: 1`."""
    entries: dict[str, tuple[float, ...]] = {}
    for name, listed, single in re.findall(rf"\b(\w{{1,40}})[ \t]*=\s*(?:\(([^()]*)\)|({NUMBER}))\s*;", text):
        numbers = tuple(float(number) for number in re.findall(NUMBER, listed or single))
        entries[_normalize_name(name)] = numbers if entries.get(_normalize_name(name), numbers) == numbers else ()
    listed_alone = rf"^[ \t]*([A-Z_]{{1,40}}?)(?:_(\d{{1,2}}))?[ \t]*:[ \t]*({NUMBER})"
    for name, index, number in re.findall(listed_alone, text, re.MULTILINE):
        previous = entries.get(name.lower(), ())
        in_order = not index or int(index) == len(previous) + 1  # other orders leave too few numbers and are rejected
        entries[name.lower()] = (*previous, float(number)) if in_order else ()
    return entries


def _normalize_name(name: str) -> str:
    """Convert `lineNumCoef` to line_num_coeff and `longOffset` to long_off."""
    snake_case = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"_coef$", "_coeff", re.sub(r"_offset$", "_off", snake_case))


def check_covers(rpc: Rpc, path: Path, *, height: int, width: int) -> None:
    """Raise UserError if the center of the coefficients is outside of the image, as for another camera or cut."""
    if not (0.0 <= rpc.line_off <= height and 0.0 <= rpc.samp_off <= width):
        raise user_error(
            f"the coefficients in {path} belong to another image",
            got=f"their center at line {rpc.line_off:g}, sample {rpc.samp_off:g} of {height} x {width} pixels",
            expected="a center inside the image",
            fix="unpack the product again: each image has a coefficient file of the same name, and is not cropped",
        )


def _coefficient_error(path: Path, *, got: str) -> UserError:
    return user_error(
        f"the coefficients in {path} cannot be used",
        got=got,
        expected="10 offsets and scales and 4 x 20 finite coefficients of a place between 84 degrees south and north",
        fix="unpack or download the product again",
    )
