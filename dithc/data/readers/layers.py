"""Layers: bands of other rasters or fields, resampled to the grid of each scene and appended to its bands.

A first pass over all files measures the range of each band, because the scenes of a dataset share scale and offset.

Legend: C bands of a scene, L bands of a layer, H, W scene, h, w file.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.artifacts import digest
from dithc.core.logging import user_error
from dithc.data.file_checks import combined_sha256
from dithc.data.grids import Grid, Resample, warp
from dithc.data.raster import read_raster
from dithc.data.readers.listing import RASTERS, Listing, scene_id, state_of
from dithc.data.readers.netcdf import SUFFIXES, BandRanges, NetcdfReader
from dithc.data.readers.rasters import as_chw
from dithc.data.readers.tags import check_tags
from dithc.data.scene import Array, Mask, PixelBuffer, Reason, Scene, SceneRejectedError, find_invalid, stored_physical

CACHED_BYTES = 512 << 20
"""Most bytes of decoded rasters that a layer keeps for the next scenes, in addition to the last raster."""
BLOCK_VALUES = 1 << 22
"""Values of a scene that are resampled together."""
SHIFT = 1 << 15
"""Difference of the numbers that uint16 and int16 store for the same value."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Values of a file or of a time step."""

    name: str
    sha256: str
    values: Array  # (L, h, w), NaN without data
    grid: Grid


class Layers:
    """Layers of a dataset. Raises UserError if a file cannot be used, before a scene is read."""

    def __init__(self, settings: Mapping[str, datasets.Layer], *, suffix: str = "") -> None:
        """Measure all files; `suffix` is an end of scene names that the names of layers do not contain."""
        self._suffix = suffix
        self._layers = {
            name: _Fields(name, layer) if isinstance(layer, datasets.FieldLayer) else _Rasters(name, layer)
            for name, layer in settings.items()
        }
        layers = list(self._layers.values())
        self.bands = [band for layer in layers for band in layer.bands]
        self.units = [unit for layer in layers for unit in layer.units]
        scales, offsets = ([step for layer in layers for step in layer.scaling[part]] for part in (0, 1))
        self.scaling = scales, offsets
        self.files = [file for layer in layers for file in layer.files]
        self.memory_bytes = sum(layer.memory_bytes for layer in layers)

    def state(self) -> dict[str, str]:
        """Return the state of the files of each layer; every scene depends on all of them."""
        return {
            name: state_of(layer.files, relative_to=layer.folder)[0] or "inaccessible"
            for name, layer in self._layers.items()
        }

    def report(self) -> None:
        """Log the files of the layers that are not read."""
        for layer in self._layers.values():
            layer.listing.report()

    def canvas(self, canvas: PixelBuffer) -> "WideCanvas":
        """Return a canvas with space for the bands of all layers."""
        return WideCanvas(canvas, len(self.bands))

    def append(self, scene: Scene, canvas: "WideCanvas") -> Scene:
        """Return a scene with the bands of all layers; pixels that lack a value of a layer have no data.

        Raises SceneRejectedError if the scene has no georeference, or if a layer has no value in its valid pixels.
        """
        place, count = scene.place, len(scene.bands)
        if place.crs is None or place.transform is None:
            raise SceneRejectedError(
                Reason.CRS_MISSING,
                "layers require a georeference of the scene",
                got="none",
                expected="a coordinate reference system and a grid",
                fix="restore the georeference of the file (gdal_edit), or remove `layers` of the dataset",
            )
        height, width = scene.mask.shape
        grid = Grid(crs=place.crs, epsg=place.epsg, transform=place.transform, shape=(height, width))
        pixels, mask, notes = canvas.widened(scene.pixels), scene.mask.copy(), list(scene.notes)
        shift = SHIFT if pixels.dtype == np.uint16 else 0
        first, hashes = 0, {"scene": scene.sha256}
        for name, layer in self._layers.items():
            parts = layer.parts(scene, grid, self._name_of(scene))
            missing = np.zeros(mask.shape, bool)
            bands = slice(first, first + len(layer.bands))
            first = bands.stop
            for rows in _blocks(height, width * len(layer.bands)):
                values = _resample(parts, len(layer.bands), grid.rows(rows.start, rows.stop), layer.settings.resampling)
                invalid = np.isnan(values)  # (L, rows, W)
                missing[rows] |= invalid.any(axis=0)
                columns = zip(self.bands[bands], values, invalid, *(part[bands] for part in self.scaling), strict=True)
                for target, (band, plane, hole, scale, offset) in zip(pixels[count:][bands], columns, strict=True):
                    numbers = stored_physical(plane - np.float64(offset), scale=scale, invalid=hole, units=band)
                    target[rows] = np.where(hole, 0, numbers.astype(np.int32) + shift)
                canvas.release()
            if not (mask[~missing] != Mask.INVALID).any():
                raise _missing_error(layer, scene, parts)
            if (mask[missing] != Mask.INVALID).any():
                notes.append(f"incomplete-{name}")
            mask[missing] = Mask.INVALID
            hashes |= {f"{name}/{part.name}": part.sha256 for part in parts}
        units = scene.units.split(", ")
        units = [*(units if len(units) == count else [scene.units] * count), *self.units]
        scale, offset = (np.broadcast_to(value, count).tolist() for value in (scene.scale, scene.offset))
        return replace(
            scene,
            pixels=pixels,
            mask=mask,
            sha256=digest(hashes),
            bands=[*scene.bands, *self.bands],
            units=", ".join(units if len({*units}) > 1 else units[:1]),
            scale=[*scale, *self.scaling[0]],
            offset=[*offset, *(zero - shift * step for step, zero in zip(*self.scaling, strict=True))],
            notes=tuple(notes),
        )

    def _name_of(self, scene: Scene) -> str:
        """Return the name of a scene without suffix; of a time step, the name of its file."""
        path = scene.path.parent if scene.path.parent.suffix.lower() in SUFFIXES else scene.path
        return path.name.removesuffix(self._suffix).partition(".")[0]


class WideCanvas(PixelBuffer):
    """Canvas that allocates the bands of a scene together with bands of layers, so that they are not copied."""

    def __init__(self, canvas: PixelBuffer, bands: int) -> None:
        self._canvas, self._added, self._pixels = canvas, bands, np.empty(0)

    def blank(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self._pixels = self._canvas.blank((shape[0] + self._added, *shape[1:]), dtype)
        return self._pixels[: shape[0]]

    def release(self) -> None:
        self._canvas.release()

    def widened(self, pixels: Array) -> Array:
        """Return an array with the pixels (C, H, W) of a scene and space for the added bands, as uint16 for bytes."""
        if not np.may_share_memory(pixels, self._pixels):
            self.blank(pixels.shape, np.uint16 if pixels.dtype == np.uint8 else pixels.dtype)[:] = pixels
        return self._pixels


class _Rasters:
    """Layer of raster files, each with all bands."""

    def __init__(self, name: str, settings: datasets.RasterLayer) -> None:
        self.name, self.settings, self.folder = name, settings, Path(settings.path)
        self.bands, self.units = settings.bands, [settings.units] * len(settings.bands)
        self.listing = Listing(settings, self.folder)
        self.files = self.listing.files(
            suffixes=RASTERS - {".npy"},
            masks=True,
            expected=f"GeoTIFF files of {', '.join(self.bands)}",
            fix=f"put the files there, or correct `layers.{name}.path` and `include`",
        )
        self._parts: dict[Path, _Part] = {}
        self._grids, ranges, sizes = dict[Path, Grid](), BandRanges(len(self.bands)), list[int]()
        for file in self.files:
            with _usable(name, file):
                part = self._read(file)
            ranges.add(part.values)
            self._grids[file] = part.grid
            sizes.append(part.values.nbytes)
        self.memory_bytes = min(CACHED_BYTES, sum(sizes)) + 2 * max(sizes)
        self.scaling = ranges.scaling(self.bands, self.folder)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": {}}

    def parts(self, scene: Scene, grid: Grid, name: str) -> list[_Part]:
        """Return the files that overlap a scene on `grid`, with `match: name` those related to its name."""
        files = _related(self.files, name) if self.settings.match == "name" else self.files
        return [self._read(file) for file in files if grid.overlaps(self._grids[file])]

    def _read(self, file: Path) -> _Part:
        """Return a file, unless it is one of the last files; SceneRejectedError for another layout, grid or tag."""
        if file in self._parts:
            return self._parts[file]
        settings = self.settings
        pixels, info = read_raster(file, bands=self.bands)
        pixels = as_chw(pixels, bands=self.bands, layout="chw", alpha=info.alpha)
        _, b, _, d, _, _ = info.transform
        if info.crs is None or not info.has_grid or b or d or pixels.dtype.kind not in "iuf":
            raise SceneRejectedError(
                Reason.CRS_MISSING,
                "the raster has no north-up grid of real numbers",
                got=f"{pixels.dtype}, system {info.crs}, transform {info.transform}",
                expected="integers or floating-point numbers, a coordinate reference system and a grid without rotation",
                fix="write the raster again (gdalwarp), or leave it out with `exclude`",
            )
        check_tags(
            file,
            info.labels,
            bands=self.bands,
            default_colors=pixels.dtype == np.uint8,
            units=settings.units,
            scale=settings.scale,
            offset=settings.offset,
        )
        nodata = info.nodata if settings.nodata is None else settings.nodata
        invalid = find_invalid(pixels, nodata, masked=info.masked)
        values = pixels.astype(np.result_type(pixels.dtype, np.float32))  # (L, h, w)
        values[invalid] = np.nan
        if (settings.scale, settings.offset) != (1.0, 0.0):
            values = values * settings.scale + settings.offset
        grid = Grid(crs=info.crs, epsg=info.epsg, transform=info.transform, shape=(info.height, info.width))
        sha256 = combined_sha256({path.name: path for path in (file, *info.companions)})
        while self._parts and sum(part.values.nbytes for part in self._parts.values()) > CACHED_BYTES:
            del self._parts[next(iter(self._parts))]
        self._parts[file] = _Part(name=scene_id(file, self.folder), sha256=sha256, values=values, grid=grid)
        return self._parts[file]


class _Fields:
    """Layer of NetCDF files, read as a source of scenes: the step with the time of a scene, or a file without time."""

    def __init__(self, name: str, settings: datasets.FieldLayer) -> None:
        self.name, self.settings, self.folder = name, settings, Path(settings.path)
        self.bands = settings.bands
        self._reader = NetcdfReader(settings, self.folder)
        self.listing, self.scaling = self._reader.listing, self._reader.scaling
        self.memory_bytes = self._reader.memory_bytes
        self.files = sorted({self._reader.file_of(path) for path in self._reader.paths})
        self._steps: dict[str | None, list[Path]] = defaultdict(list)
        units = dict[Path, list[str]]()
        for path in self._reader.paths:
            file = self._reader.file_of(path)
            with _usable(name, file):
                if path == file:
                    self._reader.read(path)  # raises its error
                fields, step = self._reader.open(path), int(path.name)
                if fields.grid.transform is None:
                    raise OSError(f"it has no complete georeference ({fields.grid.note})")
                self._steps[fields.time(step)].append(path)
                units[file] = fields.units
        self.units = units[self.files[0]]
        if other := next((file for file in self.files if units[file] != self.units), None):
            raise user_error(
                f"the units of layer {name!r} differ between its files",
                got=f"{', '.join(units[other])} in {other.name}",
                expected=f"{', '.join(self.units)}, as in {self.files[0].name}",
                fix="convert the file, or leave it out with `exclude`",
            )

    def parts(self, scene: Scene, grid: Grid, name: str) -> list[_Part]:
        """Return the step with the scene's time, or a step without time; SceneRejectedError if there are several."""
        steps = [*self._steps.get(scene.properties.get("sensing_time"), []), *self._steps.get(None, [])]
        if self.settings.match == "name":
            files = _related(self.files, name)
            steps = [path for path in steps if self._reader.file_of(path) in files]
        parts = [part for path in dict.fromkeys(steps) for part in self._read(path, grid) if grid.overlaps(part.grid)]
        if len(parts) > 1:
            raise SceneRejectedError(
                Reason.WRONG_LAYOUT,
                f"several fields of layer {self.name!r} have the time of the scene",
                got=", ".join(part.name for part in parts),
                expected="one field",
                fix=f"set `layers.{self.name}.match: name`, or leave files out with `exclude`",
            )
        return parts

    def _read(self, path: Path, scene: Grid) -> Iterator[_Part]:
        """Yield the values of a step, unless its coordinate system is unknown and its axes differ from the scene's."""
        fields = self._reader.open(path)
        values, place, transform = fields.values(int(path.name)), fields.grid.place, fields.grid.transform
        assert transform is not None
        grid = Grid(crs=place.crs or scene.crs, epsg=place.epsg, transform=transform, shape=values.shape[1:])
        if grid.is_global:  # repeated, because scenes at the antimeridian have longitudes on both sides or above 180
            values = np.concatenate([values[..., -1:], values, values], axis=2)
            a, b, c, d, e, f = transform
            grid = replace(grid, transform=(a, b, c - a, d, e, f), shape=values.shape[1:])
        if place.crs is not None or (grid.shape == scene.shape and np.allclose(transform, scene.transform, rtol=1e-6)):
            yield _Part(name=scene_id(fields.path, self.folder), sha256=fields.sha256, values=values, grid=grid)


def _related(files: list[Path], name: str) -> list[Path]:
    """Return the files with a name that contains the name of a scene, or is contained in it, as complete words."""

    def contains(text: str, part: str) -> bool:
        return re.search(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", text) is not None

    return [file for file in files if contains(file.stem, name) or contains(name, file.stem)]


def _blocks(height: int, values: int) -> Iterator[slice]:
    """Yield slices of the rows of a scene, which have so many values each."""
    step = max(1, BLOCK_VALUES // values)
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


def _resample(parts: list[_Part], bands: int, grid: Grid, how: Resample) -> Array:
    """Return the bands on a grid (L, H, W), from the first part with a value of each pixel; NaN without a value."""
    target: Array = np.full((bands, *grid.shape), np.nan)
    for part in parts:
        target = np.where(np.isnan(target), warp(part.values, source=part.grid, grid=grid, how=how), target)
    return target


def _missing_error(layer: _Rasters | _Fields, scene: Scene, parts: list[_Part]) -> SceneRejectedError:
    names = ", ".join(part.name for part in parts) or f"none of {len(layer.files)} files in {layer.folder}"
    time = f", time {scene.properties.get('sensing_time')}" if isinstance(layer, _Fields) else ""
    return SceneRejectedError(
        Reason.MISSING_BAND,
        f"layer {layer.name!r} has no value in the valid pixels of the scene",
        got=f"{names}{time}, match {layer.settings.match}",
        expected="a file of the layer that overlaps the scene, of its time (netcdf) or name (`match: name`)",
        fix=f"add the file, correct `layers.{layer.name}`, or leave the scene out with `source.exclude`",
    )


@contextmanager
def _usable(name: str, file: Path) -> Iterator[None]:
    """Convert errors of a file of a layer to UserError, because every scene may need it."""
    try:
        yield
    except (SceneRejectedError, OSError, ValueError) as error:
        raise user_error(
            f"layer {name!r}: {file}: {getattr(error, 'problem', 'cannot be read')}",
            got=getattr(error, "got", error),
            expected=getattr(error, "expected", "a complete file of the layer"),
            fix=getattr(error, "fix", f"replace it, or leave it out with `layers.{name}.exclude`"),
        ) from error
