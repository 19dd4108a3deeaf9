"""Scenes of a source plugin, each checked before use.

Legend: C bands, H, W scene.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dithc.config import datasets
from dithc.data.file_checks import combined_sha256
from dithc.data.parquet import Kind
from dithc.data.readers.listing import Listing, below, exists, scene_id, walk
from dithc.data.scene import Array, Georeference, Mask, Reason, Scene, SceneRejectedError, Units

STORED = ("uint8", "int16", "uint16")
PICTURE = Georeference(gsd_m=0.0)
FACTS: dict[str, type] = {
    **dict.fromkeys(("product_id", "satellite", "sensor", "sensing_time"), str),
    **dict.fromkeys(("sun_elevation", "sun_azimuth"), float),
}
"""Types of facts of a scene: text (time as 2024-05-17T10:00:31), and angles in degrees."""


@dataclass(frozen=True, kw_only=True)
class Raster:
    """Result of `read` of an installed source; physical = stored * scale + offset."""

    pixels: Array  # (C, H, W), uint8, int16 or uint16, the same for all scenes; C as in `bands`
    units: Units = "dn"
    scale: float = 1.0
    offset: float = 0.0
    mask: Array | None = None  # (H, W) uint8: 0 invalid, 1 valid, 2 cloud; None if every pixel is valid
    place: Georeference = PICTURE  # by default none, as for images
    label: int = 0  # class index
    facts: dict[str, Any] = field(default_factory=dict)  # metadata with names in `FACTS`


class InstalledReader:
    """Reader that calls the settings class of an installed source."""

    columns: ClassVar[dict[str, Kind]] = {"sun_elevation": "float", "sun_azimuth": "float"}

    def __init__(self, source: datasets.PluginSource, folder: Path) -> None:
        self.source, self.folder = source, folder
        exists(folder, wanted=f"files of {source.kind}")
        self.listing = Listing(source, folder)
        self.paths: list[Path] = source.called(source.scenes, folder)
        if not self.paths:
            fix = "put the files there or correct `source.path`"
            raise self.listing.nothing_found(folder, wanted=f"files of {source.kind}", fix=fix)
        outside = [path for path in self.paths if not (isinstance(path, Path) and path.is_relative_to(folder))]
        if outside or len(set(self.paths)) < len(self.paths):
            got = f"{outside[0]!r}" if outside else "a path twice"
            raise source.fault(
                "lists a path that is not one of its scenes", got=got, expected=f"paths in {folder}, each once"
            )
        self.classes: list[str] = source.called(source.classes, folder)
        for path in {place / name for place, _, names in walk(folder) for name in names} - {*self.paths}:
            self.listing.leave(path)

    def inputs(self, path: Path) -> list[Path]:
        given: list[Path] = self.source.called(self.source.inputs, path)
        return [file for one in given for file in (below(one) if one.is_dir() else [one])]

    def read(self, path: Path) -> Scene:
        """Read one file; raise SceneRejectedError if the result is not a valid scene of the source."""
        try:
            found = self.source.read(path)
        except (SceneRejectedError, OSError, ValueError, EOFError, MemoryError):
            raise
        except Exception as error:  # external code may raise any exception
            raise _refused("reading fails", got=f"{type(error).__name__}: {error}", expected="a raster") from error
        self._check(found)
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256({os.path.relpath(one, path.parent): one for one in self.inputs(path)}),
            pixels=found.pixels,
            mask=np.full(found.pixels.shape[1:], Mask.VALID, np.uint8) if found.mask is None else found.mask,
            bands=self.source.bands,
            place=found.place,
            units=found.units,
            scale=found.scale,
            offset=found.offset,
            label=found.label,
            facts=found.facts,
        )

    def _check(self, found: Any) -> None:
        if not isinstance(found, Raster):
            raise _refused(
                "the result is not a raster", got=type(found).__name__, expected="dithc.data.readers.plugin.Raster"
            )
        pixels, bands = found.pixels, self.source.bands
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or len(pixels) != len(bands) or not pixels.size:
            expected = f"({len(bands)}, H, W), by `bands` {', '.join(bands)}"
            raise _refused("pixels of wrong shape", got=np.shape(pixels), expected=expected)
        if str(pixels.dtype) not in STORED:
            raise _refused("pixels of wrong type", got=pixels.dtype, expected=" or ".join(STORED))
        if found.mask is not None and (
            found.mask.shape != pixels.shape[1:] or found.mask.dtype != np.uint8 or int(found.mask.max()) > max(Mask)
        ):
            expected = f"uint8 {pixels.shape[1:]} of 0 invalid, 1 valid, 2 cloud"
            raise _refused("an invalid mask", got=f"{found.mask.dtype} {found.mask.shape}", expected=expected)
        odd = {name: value for name, value in found.facts.items() if not isinstance(value, FACTS.get(name, ()))}
        if odd:
            expected = ", ".join(f"{name} ({kind.__name__})" for name, kind in FACTS.items())
            raise _refused("facts of wrong names or types", got=odd, expected=expected)
        if not 0 <= found.label < len(self.classes):
            raise _refused("a label without class", got=found.label, expected=f"0 to {len(self.classes) - 1}")


def _refused(what: str, *, got: object, expected: object) -> SceneRejectedError:
    fix = "correct the package that reads it, or remove the file from the folder; see docs/extending.md"
    return SceneRejectedError(Reason.READ_ERROR, f"of an installed source: {what}", got=got, expected=expected, fix=fix)
