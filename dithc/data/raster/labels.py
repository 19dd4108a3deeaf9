"""Metadata of single bands: description, units, scale, offset, wavelength and color interpretation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rasterio.enums import ColorInterp

WAVELENGTH = re.compile(r"(?:cent(?:er|re|ral)_?)?wavelength(?:_(?:um|nm))?", re.IGNORECASE)
LARGEST_UM = 100.0
"""Smaller wavelengths are micrometers, larger ones nanometers: sensors cover 0.1 um to 20 um."""


@dataclass(frozen=True, kw_only=True)
class BandLabel:
    """Metadata of one band of a file: physical = stored * scale + offset."""

    name: str  # such as B04; empty if the file has no description
    units: str
    scale: float = 1.0
    offset: float = 0.0
    wavelength_nm: float | None = None
    shown: str | None = None  # color interpretation, such as `red`


def read_labels(source: Any, numbers: Sequence[int]) -> tuple[BandLabel, ...]:
    """Return the labels of bands of an open file, numbered from 1."""
    colors = [None if color == ColorInterp.undefined else color.name for color in source.colorinterp]
    return tuple(
        BandLabel(
            name=(source.descriptions[number - 1] or "").strip(),
            units=(source.units[number - 1] or "").strip(),
            scale=source.scales[number - 1],
            offset=source.offsets[number - 1],
            wavelength_nm=_wavelength_nm(source.tags(number) | source.tags(number, ns="IMAGERY")),
            shown=colors[number - 1],
        )
        for number in numbers
    )


def write_labels(target: Any, bands: Sequence[BandLabel]) -> None:
    target.descriptions = [band.name for band in bands]
    target.units = [band.units for band in bands]
    target.scales = [band.scale for band in bands]
    target.offsets = [band.offset for band in bands]
    target.colorinterp = [ColorInterp[band.shown or "undefined"] for band in bands]
    for number, band in enumerate(bands, start=1):
        if band.wavelength_nm is not None:
            target.update_tags(number, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{band.wavelength_nm / 1000:.6g}")


def _wavelength_nm(tags: dict[str, str]) -> float | None:
    matches = [re.match(r"\s*(\d+\.?\d*)", text) for key, text in tags.items() if WAVELENGTH.fullmatch(key)]
    value = next((float(match[1]) for match in matches if match), 0.0)
    return (value * 1000 if value < LARGEST_UM else value) or None
