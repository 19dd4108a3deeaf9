"""Clouds of a Sentinel-2 scene: what the product's own masks or the user's say, and how far around."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.ndimage import maximum_filter1d

from dithc.config import datasets
from dithc.data.grids import Grid, regrid
from dithc.data.npy import read_npy
from dithc.data.raster import read_raster
from dithc.data.readers.safe_files import CLASSI, CLOUD_PROBABILITY, SCENE_CLASSIFICATION, BandFile
from dithc.data.readers.safe_grid import ABSENT, STRIP_ROWS, check_cover, read_file
from dithc.data.scene import Array, Mask, Place, Reason, Refused

INVALID_CLASSES = (0, 1)
"""Of the scene classification: no data, saturated or defective."""
OPAQUE_AND_CIRRUS = 2
"""The first layers of MSK_CLASSI; the third is snow."""
CLEAR, CLOUDY = 0, (1, 1024, 2048, 3072)
"""Numbers of a user's mask; the latter three are bits 10 (opaque) and 11 (cirrus) of QA60."""
SUFFIXES = (".npy", ".tif", ".tiff")
ENDINGS = (*SUFFIXES, ".jp2", ".safe", ".zip", ".json")
"""Of scenes, beside whose names without them masks are looked for; other dots belong to the name of a granule."""


def mark_clouds(files: Mapping[str, BandFile], clouds: datasets.ProductClouds, grid: Grid, mask: Array) -> None:
    """Marks invalid and cloudy pixels of a product's own masks in the mask (H, W).

    Raises:
        Refused: a mask's file is not on the product's grid, or not of its type.
    """
    if SCENE_CLASSIFICATION in files:
        (classes,) = _layers(files[SCENE_CLASSIFICATION], grid)
        for top in range(0, len(mask), STRIP_ROWS):  # a strip at a time: numpy looks classes up with 8 bytes a pixel
            rows = slice(top, top + STRIP_ROWS)
            _mark(mask[rows], np.isin(classes[rows], clouds.classes))
            mask[rows][np.isin(classes[rows], (*INVALID_CLASSES, ABSENT))] = Mask.INVALID
    if CLOUD_PROBABILITY in files:
        (percent,) = _layers(files[CLOUD_PROBABILITY], grid)
        assert clouds.probability is not None
        _mark(mask, (percent >= clouds.probability) & (percent != ABSENT))
    if CLASSI in files:
        for layer in _layers(files[CLASSI], grid, most=OPAQUE_AND_CIRRUS):
            _mark(mask, layer == 1)


def mark_user_mask(path: Path, place: Place, mask: Array) -> None:
    """Marks what a user's mask says in the mask (H, W), whose pixels it must have.

    Raises:
        Refused: its shape or place is another, or it holds other numbers than it may.
        OSError, ValueError: it cannot be read.
    """
    if path.suffix == ".npy":
        values, same = read_npy(path), True
    else:
        values, info = read_raster(path)
        same = info.crs is None or (info.crs, info.transform) == (place.crs, place.transform)
        if info.masked is not None:
            values = np.where(info.masked, np.array(ABSENT).astype(values.dtype), values)
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    if values.shape != mask.shape or not same:
        raise Refused(
            Reason.GRID_MISMATCH,
            f"{path.name} is not on the pixels of its scene",
            got=f"shape {values.shape}" + ("" if same else " at another place"),
            expected=f"shape {mask.shape}, at the scene's place if it says one",
            remedy="make the mask on the grid of the scene (gdalwarp -te -tr, nearest neighbour)",
        )
    cloudy = np.isin(values, CLOUDY)
    if not (cloudy | np.isin(values, (CLEAR, ABSENT))).all():
        raise Refused(
            Reason.UNITS_CONTRADICTION,
            f"{path.name} holds numbers that mean nothing",
            got=f"{values.dtype}, {np.unique(values[~np.isin(values, (CLEAR, ABSENT, *CLOUDY))])[:5].tolist()}",
            expected=f"{CLEAR} clear, {ABSENT} no data, {', '.join(map(str, CLOUDY))} cloud",
            remedy="write the mask in these numbers; a probability needs a threshold first",
        )
    _mark(mask, cloudy)
    mask[values == ABSENT] = Mask.INVALID


def widen(mask: Array, *, buffer_m: float, gsd_m: float) -> None:
    """Marks the valid pixels within a square of `buffer_m` around each cloudy one as cloudy, (H, W)."""
    reach = int(np.ceil(buffer_m / gsd_m))
    if reach:
        near = (mask == Mask.CLOUD).astype(np.uint8)
        for axis in (0, 1):
            maximum_filter1d(near, 2 * reach + 1, axis=axis, output=near, mode="constant")
        _mark(mask, near == 1)


def user_mask(scene: Path) -> Path:
    """The mask of the user's beside a scene.

    Raises:
        Refused: there is none, or several.
    """
    name = (scene.stem if scene.suffix.lower() in ENDINGS else scene.name).removesuffix(".SAFE")
    found = [path for suffix in SUFFIXES if (path := scene.with_name(f"{name}_mask{suffix}")).is_file()]
    if len(found) != 1:
        raise Refused(
            Reason.INCOMPLETE,
            f"the scene has {'several masks' if found else 'no mask'} beside it",
            got=", ".join(path.name for path in found) or "none",
            expected=f"{name}_mask.npy or {name}_mask.tif, as `clouds.beside` says",
            remedy="put the mask there (all zeros where there is no cloud), or set `clouds.beside: false`",
        )
    return found[0]


def is_user_mask(path: Path) -> bool:
    """Whether a file is named as a mask beside a scene."""
    return path.stem.endswith("_mask") and path.suffix.lower() in SUFFIXES


def _layers(file: BandFile, grid: Grid, *, most: int = 1) -> list[Array]:
    """The first layers of a mask on the grid, each (H, W), nearest pixel; `ABSENT` outside."""
    layers, info = read_file(file)
    check_cover(info, grid, band=file.band)
    return [regrid(layer, transform=info.transform, grid=grid, how="nearest", nodata=ABSENT) for layer in layers[:most]]


def _mark(mask: Array, cloudy: Array) -> None:
    mask[cloudy & (mask == Mask.VALID)] = Mask.CLOUD
