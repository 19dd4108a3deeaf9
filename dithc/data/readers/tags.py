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
OF_SENTINEL2 = {"B02": "blue", "B03": "green", "B04": "red", "B08": "nir"}
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
SAME, NEAR_NM, FAR_NM = 1e-5, 0.01, 0.05
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
    if units not in ("reflectance", "radiance"):
        return
    scales, offsets = (np.broadcast_to(value, len(labels)).tolist() for value in (scale, offset))
    for file, label, band, *declared in zip(files, labels, bands, scales, offsets, strict=True):
        factor = 0.01 if label.units.casefold() in PERCENT else 1.0
        tagged = [label.scale * factor, label.offset * factor]
        same = all(isclose(a, b, rel_tol=SAME, abs_tol=1e-12) for a, b in zip(tagged, declared, strict=True))
        if tagged != [1.0, 0.0] and not same:
            said, wanted = (f"scale {values[0]:g}, offset {values[1]:g}" for values in (tagged, declared))
            raise _contradiction(file, band, got=said, expected=wanted, what="scale and offset")
        found = next((one for one, words in QUANTITIES.items() if words.fullmatch(label.units.casefold())), units)
        if found not in ((units, "dn") if declared != [1.0, 0.0] else (units,)):
            raise _contradiction(file, band, got=f"{label.units} ({found})", expected=units, what="units")


def _check_names(
    files: Sequence[Path], labels: Sequence[BandLabel], bands: Sequence[str], *, default_colors: bool
) -> None:
    declared = [_words(band) | {OF_SENTINEL2.get(band, "")} - {""} for band in bands]
    times = Counter(word for words in declared for word in words)
    declared = [{word for word in words if times[word] == 1} for words in declared]
    described = _described(files, labels, {word for words in declared for word in words})
    repeats = Counter(map(frozenset, described))
    for number, (found, own) in enumerate(zip(described, declared, strict=True)):
        others = [band for band, words in zip(bands, declared, strict=True) if found & words]
        same_kind = [word for word in found if any(_kind(word) == _kind(one) for one in own)]
        swapped, other_kind = len(others) == 1, len(same_kind) == 1 and not _stems(found) & _stems(own)
        if found & own or repeats[frozenset(found)] > 1 or not (swapped or other_kind):
            continue
        label, file, band = labels[number], files[number], bands[number]
        shown = [one.shown for one, path in zip(labels, files, strict=True) if path == file]
        if default_colors and not _words(label.name) & found and (*shown[:3],) == RGB:
            log.warning(
                f"{file.name} tags its bands as {', '.join(RGB)}, and `bands` declares {', '.join(bands)}: correct `bands` "
                "unless the tags are GDAL's default for bytes"
            )
            return
        raise _contradiction(file, band, got=label.name or label.shown, expected=band, what="name")


def _described(files: Sequence[Path], labels: Sequence[BandLabel], known: set[str]) -> list[set[str]]:
    """Return the words of each description that identify bands; without such words, the color interpretation."""
    described = [{word for word in _words(label.name) if _kind(word) or word in known} for label in labels]
    for file in dict.fromkeys(files):
        mine = [number for number, other in enumerate(files) if other == file]
        numbers = [(str(place), match) for place, n in enumerate(mine, 1) for match in _numbers(labels[n].name)]
        own = {f"#{match[3]}" for _, match in numbers} == {word for word in known if word.startswith("#")}
        counted = all(match[3] == place and not match[2] for place, match in numbers)
        if counted and not (own and all(match[1] == "b" for _, match in numbers)):
            for n in mine:
                described[n] = {word for word in described[n] if not word.startswith("#")}
    return [words or {label.shown or ""} & {*COLORS_NM} for words, label in zip(described, labels, strict=True)]


def _check_wavelengths(
    files: Sequence[Path], labels: Sequence[BandLabel], bands: Sequence[str], wavelengths_nm: Sequence[float] | None
) -> None:
    for number, (file, label, band) in enumerate(zip(files, labels, bands, strict=True)):
        nm = label.wavelength_nm
        if nm is None:
            continue
        if wavelengths_nm is not None:
            own = wavelengths_nm[number]
            far, nearest = abs(nm - own) / own, min(wavelengths_nm, key=lambda other: abs(other - nm))
            wrong, expected = far > FAR_NM or (far > NEAR_NM and nearest != own), f"{own:g} nm"
        else:
            fitting = {color for color, (low, high) in COLORS_NM.items() if low <= nm <= high}
            colors = (_words(band) | {OF_SENTINEL2.get(band, "")}) & COLORS_NM.keys()
            wrong, expected = bool(colors and fitting and not fitting & colors), " ".join(colors)
        if wrong:
            raise _contradiction(file, band, got=f"{nm:g} nm", expected=expected, what="wavelength")


def _tokens(text: str) -> list[str]:
    text = text.casefold()
    for pattern, word in SPELLINGS:
        text = pattern.sub(word, text)
    return re.findall(r"[a-z0-9]+", text)


def _numbers(text: str) -> list[re.Match[str]]:
    tokens = _tokens(text)
    tokens = [f"band{tokens[0]}"] if len(tokens) == 1 and tokens[0].isdecimal() else tokens
    return [match for token in tokens if (match := NUMBERED.fullmatch(token))]


def _words(text: str) -> set[str]:
    """Return the words of a name in one spelling: `#4` for B4, B04 and "Band 4", `red` for R and "Red"."""
    words = {LETTERS.get(token, token) for token in _tokens(text) if not NUMBERED.fullmatch(token)}
    return words | {f"#{match[3]}" for match in _numbers(text)}


def _kind(word: str) -> str:
    return "number" if word.startswith("#") else "color" if COLORED.fullmatch(word) else ""


def _stems(words: set[str]) -> set[str]:
    return {match[1] if (match := COLORED.fullmatch(word)) else word for word in words}


def _contradiction(file: Path, band: str, *, got: object, expected: str, what: str) -> SceneRejectedError:
    return SceneRejectedError(
        Reason.TAGS_CONTRADICTION,
        f"the {what} of band {band} in {file.name} contradicts the configuration",
        got=f"{got}, by the tags of the file",
        expected=f"{expected}, as `source` declares",
        fix="correct `source` if the file is right, else the tags (gdal_edit); both must describe the same numbers",
    )
