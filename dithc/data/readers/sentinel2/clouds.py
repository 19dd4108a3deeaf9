"""Cloud masks of scenes: masks of a Sentinel-2 product, mask files of the user, and a buffer around clouds."""

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.ndimage import maximum_filter1d

from dithc.config import datasets
from dithc.data.grids import Grid, regrid
from dithc.data.npy_writer import read_npy
from dithc.data.raster import read_raster
from dithc.data.readers.listing import RASTERS
from dithc.data.readers.sentinel2.safe_files import CLASSI, CLOUD_PROBABILITY, SCENE_CLASSIFICATION, BandFile
from dithc.data.readers.sentinel2.safe_grid import ABSENT, STRIP_ROWS, check_cover, read_file
from dithc.data.scene import Array, Georeference, Mask, Reason, SceneRejectedError

INVALID_CLASSES = (0, 1)
"""Values of the scene classification: no data, saturated or defective."""
OPAQUE_AND_CIRRUS = 2
"""Number of cloud layers at the start of MSK_CLASSI; the third layer is snow."""
SUFFIXES = RASTERS | {".safe", ".zip", ".json"}
"""Suffixes of scenes that are not part of the scene's name. Other dots belong to the names of granules."""


def mark_clouds(files: Mapping[str, BandFile], clouds: datasets.ProductCloudsConfig, grid: Grid, mask: Array) -> None:
    """Mark invalid and cloudy pixels of a product's masks in (H, W); raise SceneRejectedError for another grid or type."""
    if SCENE_CLASSIFICATION in files:
        (classes,) = _read_layers(files[SCENE_CLASSIFICATION], grid)
        for top in range(0, len(mask), STRIP_ROWS):  # by strips, because numpy classifies with 8 bytes per pixel
            rows = slice(top, top + STRIP_ROWS)
            _mark_cloudy(mask[rows], np.isin(classes[rows], clouds.scl_classes))
            mask[rows][np.isin(classes[rows], (*INVALID_CLASSES, ABSENT))] = Mask.INVALID
    if CLOUD_PROBABILITY in files:
        (percent,) = _read_layers(files[CLOUD_PROBABILITY], grid)
        assert clouds.min_cloud_probability is not None
        _mark_cloudy(mask, (percent >= clouds.min_cloud_probability) & (percent != ABSENT))
    if CLASSI in files:
        for layer in _read_layers(files[CLASSI], grid, stop=OPAQUE_AND_CIRRUS):
            _mark_cloudy(mask, layer == 1)


class SceneMasks:
    """Mask files of the scenes of a source, as `clouds.mask` declares them. Each folder is listed once."""

    def __init__(self, clouds: datasets.CloudsConfig) -> None:
        self._clouds, self._setting = clouds, clouds.mask
        self._folders: dict[Path, tuple[dict[str, list[str]], set[str]]] = {}

    def find(self, scene: Path, stem: str | None = None) -> list[Path]:
        """Return the mask file of a scene, by `stem` (default: its name without suffix); none without the setting."""
        if self._setting is None:
            return []
        if stem is None:
            stem = (scene.stem if scene.suffix.lower() in SUFFIXES else scene.name).removesuffix(".SAFE")
        if scene.parent not in self._folders:
            self._folders[scene.parent] = self._list(scene.parent)
        masks, stems = self._folders[scene.parent]
        prefixes = (prefix for prefix in _prefixes(stem) if prefix == stem or prefix not in stems)
        names = next((masks[prefix] for prefix in prefixes if prefix in masks), [])
        if len(names) != 1:
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                f"the scene has {'several masks' if names else 'no mask'}",
                got=", ".join(names) or "none",
                expected=f"one raster {self._setting.names.replace('*', stem, 1)} in the folder of the scene (`clouds.mask`)",
                fix="put the mask there (all clear if there is no cloud), or remove `clouds.mask`",
            )
        return [scene.with_name(names[0])]

    def _list(self, folder: Path) -> tuple[dict[str, list[str]], set[str]]:
        """Return the mask files of a folder by the start of their scenes' names, and the names of other rasters."""
        assert self._setting is not None
        head, _, tail = self._setting.names.partition("*")
        pattern = re.compile(f"{re.escape(head)}(.*?){fnmatch.translate(tail)}", re.IGNORECASE)
        masks, stems = defaultdict[str, list[str]](list), set[str]()
        for name in sorted(os.listdir(folder)):
            stem, suffix = os.path.splitext(name)
            match = pattern.match(name) if suffix.lower() in RASTERS else None
            if match:
                masks[match[1]].append(name)
            elif suffix.lower() in RASTERS:
                stems.add(stem)
        return masks, stems

    def mark(self, scene: Path, georeference: Georeference, mask: Array, stem: str | None = None) -> list[Path]:
        """Mark the pixels of the mask file in the mask (H, W) of a scene, then the buffer; return the files of `find`."""
        files = self.find(scene, stem)
        for path in files:
            self._apply(path, georeference, mask)
        radius = int(np.ceil(self._clouds.buffer_m / georeference.gsd_m))
        if radius:
            buffered = (mask == Mask.CLOUD).astype(np.uint8)
            for axis in (0, 1):
                maximum_filter1d(buffered, 2 * radius + 1, axis=axis, output=buffered, mode="constant")
            _mark_cloudy(mask, buffered == 1)
        return files

    def _apply(self, path: Path, georeference: Georeference, mask: Array) -> None:
        setting = self._setting
        assert setting is not None
        if path.suffix.lower() == ".npy":
            values, is_aligned, excluded = read_npy(path), True, None
        else:
            values, info = read_raster(path)
            is_aligned = info.crs is None or (info.crs, info.transform) == (georeference.crs, georeference.transform)
            excluded = info.masked
        bands = values[np.newaxis] if values.ndim == 2 else values  # (C, H, W)
        if bands.shape[1:] != mask.shape or not is_aligned or len(bands) < setting.band:
            raise SceneRejectedError(
                Reason.GRID_MISMATCH,
                f"{path.name} is not on the pixels of its scene",
                got=f"shape {values.shape}" + ("" if is_aligned else " at another place"),
                expected=f"shape {mask.shape} at the place of the scene, with a band {setting.band} (`clouds.mask.band`)",
                fix="resample the mask to the grid of the scene (gdalwarp -te -tr, nearest neighbor)",
            )
        values = bands[setting.band - 1]
        clear, invalid = np.isin(values, setting.clear), np.isin(values, setting.no_data)
        invalid |= False if excluded is None else excluded  # (H, W)
        cloudy = ~(clear | invalid) if setting.cloud == "others" else np.isin(values, setting.cloud)
        if not (clear | invalid | cloudy).all():
            raise SceneRejectedError(
                Reason.UNITS_CONTRADICTION,
                f"{path.name} has values that `clouds.mask` does not declare",
                got=f"{values.dtype}, {np.unique(values[~(clear | invalid | cloudy)])[:5].tolist()}",
                expected=f"clear {setting.clear}, no_data {setting.no_data}, cloud {setting.cloud}",
                fix="declare all values of the mask in `clouds.mask`; apply a threshold to a probability first",
            )
        _mark_cloudy(mask, cloudy & ~invalid)
        mask[invalid] = Mask.INVALID


def _prefixes(stem: str) -> Iterator[str]:
    """Yield a name and its parts up to each separator, the longest first."""
    yield stem
    for match in reversed([*re.finditer(r"[-_. ]", stem)]):
        yield from (stem[: match.end()], stem[: match.start()])


def _read_layers(file: BandFile, grid: Grid, *, stop: int = 1) -> list[Array]:
    """Return the first layers of a mask on the grid, each (H, W), nearest pixel; `ABSENT` outside."""
    layers, info = read_file(file)
    check_cover(info, grid, band=file.band)
    return [regrid(layer, transform=info.transform, grid=grid, how="nearest", nodata=ABSENT) for layer in layers[:stop]]


def _mark_cloudy(mask: Array, cloudy: Array) -> None:
    mask[cloudy & (mask == Mask.VALID)] = Mask.CLOUD
