"""Tags of raster bands compared with the declared bands: names, colors, wavelengths, units, scale and offset.

A file without tags passes. A tag is a contradiction only if it identifies one other band or quantity. Other spellings
(B2 for B02, "Band 2 - blue"), free text, and labels that repeat the position of a band ("Band 1") pass.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import isclose
from pathlib import Path

import numpy as np

from dithc.core.logging import get_logger
from dithc.data.raster import BandLabel
from dithc.data.scene import Reason, SceneRejectedError

SPELLINGS = (
    (re.compile(r"near[ _-]*(?:infra[ _-]*red|ir)"), "nir"),
    (re.compile(r"short[ _-]*wave[ _-]*(?:infra[ _-]*red|ir)?"), "swir"),
    (re.compile(r"red[ _-]*edge"), "rededge"),
    (re.compile(r"(?:band|layer|channel)[ _-]*(?=\d)"), "band"),
)
NUMBERED, COLORED = re.compile(r"(b|band)(0*)(\d+a?)"), re.compile(r"(blue|green|red|nir|swir|pan)\d*")
LETTERS = {"r": "red", "g": "green", "b": "blue", "n": "nir", "panchromatic": "pan"}
SENTINEL2_COLORS = {"B02": "blue", "B03": "green", "B04": "red", "B08": "nir"}
"""Also of the harmonized Landsat products, which number bands with two digits."""
COLORS_NM = {"blue": (430, 525), "green": (500, 610), "red": (590, 705), "nir": (740, 1000)}
RGB = ("red", "green", "blue")
PERCENT = ("%", "percent")
QUANTITIES = {
    "reflectance": re.compile(r".*reflect.*"),
    "radiance": re.compile(r".*radiance.*|\S*w\b.*sr.*"),
    "dn": re.compile(r"dn|digital numbers?|counts?"),
    "another quantity": re.compile(r"k|kelvin|°?c|celsius|m|met(?:er|re)s?|db|decibels?|deg(?:ree)?s?"),
}
REL_TOL, NEAR_NM, FAR_NM = 1e-5, 0.01, 0.05
"""Relative tolerance of scales; of wavelengths if another declared band is nearer, and in any case."""
log = get_logger(__name__)


def check_tags(
    paths: Path | Sequence[Path],
    labels: Sequence[BandLabel],
    *,
    bands: Sequence[str],
    default_colors: bool = False,
    units: str = "dn",
    scale: float | Sequence[float] = 1.0,
    offset: float | Sequence[float] = 0.0,
    wavelengths_nm: Sequence[float] | None = None,
) -> None:
    """Raise SceneRejectedError, with both values, if tags of a file (or a file per band) contradict the configuration.

    Scale, offset and units of `dn` and `byte` are not compared, because numbers stay as stored. Scale and offset are
    those of all bands or of each. `default_colors` accepts red, green and blue as GDAL's default, as for bytes.
    """
    if not labels:
        return
    files = [paths] * len(labels) if isinstance(paths, Path) else paths
    for file, label, band in zip(files, labels, bands, strict=True):
        if label.shown == "palette":
            raise SceneRejectedError(
                Reason.WRONG_LAYOUT,
                f"the values of band {band} are indexes of a color table",
                got=f"{file.name}: color interpretation palette",
                expected="pixel values",
                fix="expand the colors (gdal_translate -expand rgb), or exclude the file (`source.exclude`)",
            )
    _check_names(files, labels, bands, default_colors=default_colors)
    _check_wavelengths(files, labels, bands, wavelengths_nm)
    if units in ("dn", "byte"):
        return
    scales, offsets = (np.broadcast_to(value, len(labels)).tolist() for value in (scale, offset))
    for file, label, band, *declared in zip(files, labels, bands, scales, offsets, strict=True):
        factor = 0.01 if label.units.casefold() in PERCENT else 1.0
        tagged = [label.scale * factor, label.offset * factor]
        is_equal = all(isclose(a, b, rel_tol=REL_TOL, abs_tol=1e-12) for a, b in zip(tagged, declared, strict=True))
        if tagged != [1.0, 0.0] and not is_equal:
            got, expected = (f"scale {values[0]:g}, offset {values[1]:g}" for values in (tagged, declared))
            raise _contradiction(file, band, got=got, expected=expected, tag="scale and offset")
        target = _quantity(units, units)
        quantity = _quantity(label.units, target)
        if quantity not in ((target, "dn") if declared != [1.0, 0.0] else (target,)):
            raise _contradiction(file, band, got=f"{label.units} ({quantity})", expected=units, tag="units")


def _quantity(units: str, default: str) -> str:
    return next((name for name, regex in QUANTITIES.items() if regex.fullmatch(units.casefold())), default)


def _check_names(
    files: Sequence[Path], labels: Sequence[BandLabel], bands: Sequence[str], *, default_colors: bool
) -> None:
    declared = [_keys(band) | {SENTINEL2_COLORS.get(band, "")} - {""} for band in bands]
    counts = Counter(key for keys in declared for key in keys)
    declared = [{key for key in keys if counts[key] == 1} for keys in declared]
    described = _description_keys(files, labels, {key for keys in declared for key in keys})
    repeats = Counter(map(frozenset, described))
    for number, (words, target) in enumerate(zip(described, declared, strict=True)):
        matches = [band for band, keys in zip(bands, declared, strict=True) if words & keys]
        same_kind = [key for key in words if any(_kind(key) == _kind(other) for other in target)]
        swapped, other_kind = len(matches) == 1, len(same_kind) == 1 and not _stems(words) & _stems(target)
        if words & target or repeats[frozenset(words)] > 1 or not (swapped or other_kind):
            continue
        label, file, band = labels[number], files[number], bands[number]
        colors = [other.shown for other, path in zip(labels, files, strict=True) if path == file]
        if default_colors and not _keys(label.name) & words and (*colors[:3],) == RGB:
            log.warning(
                f"{file.name} tags its bands as {', '.join(RGB)}, and `bands` declares {', '.join(bands)}: correct `bands` "
                "unless the tags are GDAL's default for bytes"
            )
            return
        raise _contradiction(file, band, got=label.name or label.shown, expected=band, tag="name")


def _description_keys(files: Sequence[Path], labels: Sequence[BandLabel], band_keys: set[str]) -> list[set[str]]:
    """Return the words of each description that identify bands; without such words, the color interpretation."""
    described = [{key for key in _keys(label.name) if _kind(key) or key in band_keys} for label in labels]
    for file in dict.fromkeys(files):
        group = [number for number, other in enumerate(files) if other == file]
        numbers = [(str(index), match) for index, n in enumerate(group, 1) for match in _numbers(labels[n].name)]
        complete = {f"#{match[3]}" for _, match in numbers} == {key for key in band_keys if key.startswith("#")}
        in_order = all(match[3] == index and not match[2] for index, match in numbers)
        if in_order and not (complete and all(match[1] == "b" for _, match in numbers)):
            for n in group:
                described[n] = {key for key in described[n] if not key.startswith("#")}
    return [keys or {label.shown or ""} & {*COLORS_NM} for keys, label in zip(described, labels, strict=True)]


def _check_wavelengths(
    files: Sequence[Path], labels: Sequence[BandLabel], bands: Sequence[str], wavelengths_nm: Sequence[float] | None
) -> None:
    for number, (file, label, band) in enumerate(zip(files, labels, bands, strict=True)):
        nm = label.wavelength_nm
        if nm is None:
            continue
        if wavelengths_nm is not None:
            declared = wavelengths_nm[number]
            deviation, nearest = abs(nm - declared) / declared, min(wavelengths_nm, key=lambda other: abs(other - nm))
            is_wrong, expected = deviation > FAR_NM or (deviation > NEAR_NM and nearest != declared), f"{declared:g} nm"
        else:
            matching = {color for color, (low, high) in COLORS_NM.items() if low <= nm <= high}
            colors = (_keys(band) | {SENTINEL2_COLORS.get(band, "")}) & COLORS_NM.keys()
            is_wrong, expected = bool(colors and matching and not matching & colors), " ".join(colors)
        if is_wrong:
            raise _contradiction(file, band, got=f"{nm:g} nm", expected=expected, tag="wavelength")


def _tokens(text: str) -> list[str]:
    text = text.casefold()
    for pattern, spelling in SPELLINGS:
        text = pattern.sub(spelling, text)
    return re.findall(r"[a-z0-9]+", text)


def _numbers(text: str) -> list[re.Match[str]]:
    tokens = _tokens(text)
    tokens = [f"band{tokens[0]}"] if len(tokens) == 1 and tokens[0].isdecimal() else tokens
    return [match for token in tokens if (match := NUMBERED.fullmatch(token))]


def _keys(text: str) -> set[str]:
    """Return the words of a name in one spelling: `#4` for B4, B04 and "Band 4", `red` for R and "Red"."""
    keys = {LETTERS.get(token, token) for token in _tokens(text) if not NUMBERED.fullmatch(token)}
    return keys | {f"#{match[3]}" for match in _numbers(text)}


def _kind(key: str) -> str:
    return "number" if key.startswith("#") else "color" if COLORED.fullmatch(key) else ""


def _stems(keys: set[str]) -> set[str]:
    return {match[1] if (match := COLORED.fullmatch(key)) else key for key in keys}


def _contradiction(file: Path, band: str, *, got: object, expected: str, tag: str) -> SceneRejectedError:
    return SceneRejectedError(
        Reason.TAGS_CONTRADICTION,
        f"the {tag} of band {band} in {file.name} contradicts the configuration",
        got=f"{got}, by the tags of the file",
        expected=f"{expected}, as `source` declares",
        fix="correct `source` if the file is right, else the tags (gdal_edit); both must describe the same numbers",
    )
