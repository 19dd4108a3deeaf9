"""Scenes from NetCDF files: one scene for each time step, stored as int16 with a scale and an offset for each band.

A first pass over all files measures the range of each band, because the scenes of a dataset share scale and offset.

Legend: C bands, H, W field.
"""

from copy import deepcopy
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.logging import UserError, get_logger, user_error
from dithc.data.readers.cf_fields import FieldFile, decoding
from dithc.data.readers.cf_grids import Floats
from dithc.data.readers.listing import Listing, scene_id
from dithc.data.scene import Mask, Scene, SceneRejectedError, stored_physical

SUFFIXES = {".nc", ".nc4", ".cdf"}
LEVELS = 65_000
"""Most steps between the extremes of a band; 65,535 numbers of int16 without the no-data value and rounded ends."""
MAX_ERROR = 0.01
"""Largest rounding error, half a step, as a share of the mean absolute deviation of a band."""
FLOAT32_STEPS = 2.0**24
"""Numbers of steps up to which float32 is exact."""
log = get_logger(__name__)


class NetcdfReader:
    """Reader of fields; the path of a scene is its file, followed by the number of its step."""

    memory_bytes = 1 << 30  # for one block of steps; more if a single step is larger

    def __init__(self, source: datasets.NetcdfSource | datasets.FieldLayer, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.classes: list[str] = [source.kind]
        self._current: FieldFile | None = None
        self.listing = Listing(source, folder)
        files = self.listing.files(
            suffixes=SUFFIXES,
            expected="NetCDF files (.nc, .nc4, .cdf)",
            fix="put the files there, or correct `source.path` and `source.include`",
        )
        self.paths: list[Path] = []
        self._steps: dict[Path, int] = {}
        ranges, unplaced = BandRanges(len(source.bands)), dict[Path, str]()
        for file in files:
            measured = deepcopy(ranges)
            try:
                steps = self._measure(file, measured)
            except (SceneRejectedError, UserError, OSError, MemoryError):  # reported by `read`
                self.paths.append(file)
                continue
            ranges, self._steps[file] = measured, steps
            self.paths += [file / f"{step:06d}" for step in range(steps)]
            if note := self.open(file).grid.note:
                unplaced[file] = note
        self.scaling = ranges.scaling(source.bands, folder)
        if unplaced:
            file, note = next(iter(unplaced.items()))
            log.warning(
                f"{len(unplaced)} of {len(files)} files have no complete georeference, such as {file.name} ({note}): their "
                "scenes have no place, and layers apply to scenes of their grid only; add `grid_mapping` (CF conventions)"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_current": None}  # open files cannot be sent to worker processes

    def inputs(self, path: Path) -> list[Path]:
        return [self.file_of(path)]

    def size(self, path: Path) -> int:
        file = self.file_of(path)
        return file.stat().st_size // self._steps.get(file, 1)

    def read(self, path: Path) -> Scene:
        if path == self.file_of(path):
            self._measure(path, BandRanges(len(self.source.bands)))
            raise OSError("the file changed while it was read")
        fields, step = self.open(path), int(path.name)
        values = fields.values(step)
        invalid = np.asarray(np.isnan(values).any(axis=0))  # (H, W)
        pixels = np.empty(values.shape, np.int16)
        for target, band, name, scale, offset in zip(pixels, values, self.source.bands, *self.scaling, strict=True):
            target[:] = stored_physical(band - offset, scale=scale, invalid=invalid, units=name)
        units = fields.units if len(set(fields.units)) > 1 else fields.units[:1]
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=fields.sha256,
            pixels=pixels,
            mask=np.where(invalid, Mask.INVALID, Mask.VALID).astype(np.uint8),
            bands=self.source.bands,
            place=fields.grid.place,
            units=", ".join(units),
            scale=self.scaling[0],
            offset=self.scaling[1],
            properties={"sensing_time": fields.time(step)},
            notes=() if fields.grid.note is None else (fields.grid.note,),
        )

    def file_of(self, path: Path) -> Path:
        """Return the file of a scene."""
        return path if path.suffix.lower() in SUFFIXES else path.parent

    def open(self, path: Path) -> FieldFile:
        """Open the file of a scene, unless it is the last one; one file is open at a time."""
        file = self.file_of(path)
        if self._current is None or self._current.path != file:
            if self._current is not None:
                self._current.close()
            self._current = None
            with decoding():
                self._current = FieldFile(file, self.source)
        return self._current

    def _measure(self, file: Path, ranges: "BandRanges") -> int:
        """Add all steps of a file to `ranges`, and return their number."""
        fields = self.open(file)
        self.memory_bytes = max(self.memory_bytes, 8 * fields.step_bytes)
        for step in range(fields.steps):
            ranges.add(fields.values(step))
        return fields.steps


class BandRanges:
    """Extremes of each band (C,), and the mean absolute deviation of its valid cells from the mean of the first step."""

    def __init__(self, count: int) -> None:
        self._low, self._high = np.full(count, np.inf), np.full(count, -np.inf)
        self._center = np.full(count, np.nan)
        self._number, self._deviations = np.zeros((2, count))

    def add(self, values: Floats) -> None:
        """Add the values (C, H, W) of a step; NaN is missing."""
        valid, axes = ~np.isnan(values), (1, 2)
        number = valid.sum(axis=axes)
        mean = values.sum(axis=axes, where=valid) / np.where(number, number, np.nan)
        self._center = np.where(np.isnan(self._center), mean, self._center)
        self._number += number
        self._deviations += np.abs(values - self._center[:, None, None]).sum(axis=axes, where=valid)
        self._low = np.minimum(self._low, values.min(axis=axes, where=valid, initial=np.inf))
        self._high = np.maximum(self._high, values.max(axis=axes, where=valid, initial=-np.inf))

    def scaling(self, bands: list[str], folder: Path) -> tuple[list[float], list[float]]:
        """Return scale and offset of each band; UserError if the rounding error of one exceeds `MAX_ERROR` deviations.

        Scales are powers of two and offsets their multiples, so that float32 represents stored * scale + offset exactly if
        all values are below 2^24 scales. Larger values add the spacing of float32 to the rounding error.
        """
        scales, offsets = [], []
        deviations = self._deviations / np.maximum(self._number, 1)
        for name, low, high, deviation in zip(bands, self._low, self._high, deviations, strict=True):
            low, high = (float(low), float(high)) if low <= high else (0.0, 0.0)  # without a valid cell
            scale = 2.0 ** ceil(log2((high - low or abs(high) or 1.0) / LEVELS))
            largest = max(abs(low), abs(high))
            error = scale / 2 + (float(np.spacing(np.float32(largest))) if largest >= FLOAT32_STEPS * scale else 0.0)
            if high > low and error > MAX_ERROR * deviation:
                raise user_error(
                    f"the stored numbers are too coarse for the band {name!r} of {folder}",
                    got=f"values from {low:.6g} to {high:.6g} with errors up to {error:.3g} and a deviation of {deviation:.3g}",
                    expected=f"a rounding error of at most {MAX_ERROR:g} deviations",
                    fix="declare the fill value as `nodata`, or transform the variable (anomaly, logarithm) before ingestion",
                )
            log.info(f"{name}: stored in steps of {scale:.3g}; the largest rounding error is {error:.3g}")
            scales.append(scale)
            offsets.append(scale * round((high + low) / 2 / scale))
        return scales, offsets
