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
from dithc.data.readers.listing import Listing, check_exists, files_below, scene_id, walk
from dithc.data.scene import Array, Georeference, Mask, Reason, Scene, SceneRejectedError, Units

DTYPES = ("uint8", "int16", "uint16")
NO_GEOREFERENCE = Georeference(gsd_m=0.0)
PROPERTIES: dict[str, type] = {
    **dict.fromkeys(("product_id", "satellite", "sensor", "sensing_time"), str),
    **dict.fromkeys(("sun_elevation", "sun_azimuth"), float),
}
"""Types of the properties of a scene: text (time as 2024-05-17T10:00:31), and angles in degrees."""


@dataclass(frozen=True, kw_only=True)
class Raster:
    """Result of `read` of an installed source; physical = stored * scale + offset."""

    pixels: Array  # (C, H, W), uint8, int16 or uint16, the same for all scenes; C as in `bands`
    units: Units = "dn"
    scale: float = 1.0
    offset: float = 0.0
    mask: Array | None = None  # (H, W) uint8: 0 invalid, 1 valid, 2 cloud; None if every pixel is valid
    place: Georeference = NO_GEOREFERENCE  # by default none, as for images
    label: int = 0  # class index
    properties: dict[str, Any] = field(default_factory=dict)  # named as in `PROPERTIES`


class InstalledReader:
    """Reader that calls the settings class of an installed source."""

    columns: ClassVar[dict[str, Kind]] = {"sun_elevation": "float", "sun_azimuth": "float"}

    def __init__(self, source: datasets.PluginSource, folder: Path) -> None:
        self.source, self.folder = source, folder
        check_exists(folder, expected=f"files of {source.kind}")
        self.listing = Listing(source, folder)
        self.paths: list[Path] = source.called(source.scenes, folder)
        if not self.paths:
            fix = "put the files there or correct `source.path`"
            raise self.listing.nothing_found(folder, expected=f"files of {source.kind}", fix=fix)
        external = [path for path in self.paths if not (isinstance(path, Path) and path.is_relative_to(folder))]
        if external or len(set(self.paths)) < len(self.paths):
            got = f"{external[0]!r}" if external else "a path twice"
            raise source.fault(
                "lists a path that is not one of its scenes", got=got, expected=f"paths in {folder}, each once"
            )
        self.classes: list[str] = source.called(source.classes, folder)
        for path in {parent / name for parent, _, names in walk(folder) for name in names} - {*self.paths}:
            self.listing.add_unread(path)

    def inputs(self, path: Path) -> list[Path]:
        entries: list[Path] = self.source.called(self.source.inputs, path)
        return [file for entry in entries for file in (files_below(entry) if entry.is_dir() else [entry])]

    def read(self, path: Path) -> Scene:
        """Read one file; raise SceneRejectedError if the result is not a valid scene of the source."""
        try:
            raster = self.source.read(path)
        except (SceneRejectedError, OSError, ValueError, EOFError, MemoryError):
            raise
        except Exception as error:  # external code may raise any exception
            raise _result_error("reading fails", got=f"{type(error).__name__}: {error}", expected="a raster") from error
        self._check(raster)
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256({os.path.relpath(file, path.parent): file for file in self.inputs(path)}),
            pixels=raster.pixels,
            mask=np.full(raster.pixels.shape[1:], Mask.VALID, np.uint8) if raster.mask is None else raster.mask,
            bands=self.source.bands,
            place=raster.place,
            units=raster.units,
            scale=raster.scale,
            offset=raster.offset,
            label=raster.label,
            properties=raster.properties,
        )

    def _check(self, raster: Any) -> None:
        if not isinstance(raster, Raster):
            raise _result_error(
                "the result is not a raster", got=type(raster).__name__, expected="dithc.data.readers.plugin.Raster"
            )
        pixels, bands = raster.pixels, self.source.bands
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or len(pixels) != len(bands) or not pixels.size:
            expected = f"({len(bands)}, H, W), by `bands` {', '.join(bands)}"
            raise _result_error("pixels of wrong shape", got=np.shape(pixels), expected=expected)
        if str(pixels.dtype) not in DTYPES:
            raise _result_error("pixels of wrong type", got=pixels.dtype, expected=" or ".join(DTYPES))
        if raster.mask is not None and (
            raster.mask.shape != pixels.shape[1:] or raster.mask.dtype != np.uint8 or int(raster.mask.max()) > max(Mask)
        ):
            expected = f"uint8 {pixels.shape[1:]} of 0 invalid, 1 valid, 2 cloud"
            raise _result_error("an invalid mask", got=f"{raster.mask.dtype} {raster.mask.shape}", expected=expected)
        invalid = {
            name: value for name, value in raster.properties.items() if not isinstance(value, PROPERTIES.get(name, ()))
        }
        if invalid:
            expected = ", ".join(f"{name} ({kind.__name__})" for name, kind in PROPERTIES.items())
            raise _result_error("properties of wrong names or types", got=invalid, expected=expected)
        if not 0 <= raster.label < len(self.classes):
            raise _result_error("a label without class", got=raster.label, expected=f"0 to {len(self.classes) - 1}")


def _result_error(text: str, *, got: object, expected: object) -> SceneRejectedError:
    fix = "correct the package that reads it, or remove the file from the folder; see docs/extending.md"
    return SceneRejectedError(Reason.READ_ERROR, f"of an installed source: {text}", got=got, expected=expected, fix=fix)
