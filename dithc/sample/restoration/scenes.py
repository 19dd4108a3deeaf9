"""Windows of the scenes to restore, in the bands and units of the prior, and the state of each pixel.

Legend: C bands of the prior, H, W scene, h, w window. A window may exceed the scene.
"""

import hashlib
import itertools
import math
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter

from dithc.config import datasets, evaluations
from dithc.core.artifacts import digest
from dithc.core.logging import get_logger, user_error
from dithc.data import BandScaling, Tiles, products
from dithc.sample.restoration.hiding import Hiding

Array = npt.NDArray[Any]
MEMBER_BITS = 16  # of the number of a noise image
SAMPLED_BLOCKS = 256  # rows and columns of coarse pixels that are checked
CONSTANT_SHARE = 0.95  # least share of them with one value; mosaics have a few others
log = get_logger(__name__)


class Flag(IntEnum):
    """State of a pixel in a band."""

    OUTSIDE = 0
    OBSERVED = 1
    RESTORED = 2


class RestorableScenes:
    """Scenes of a dataset in the bands of a prior, with the `info` (dataset.json) of its tiles.

    `hiding` are scenes with gaps that hide pixels, `given` are bands that the prior does not generate. Raises UserError if
    units, level or bands differ from the training scenes.
    """

    def __init__(
        self,
        folder: Path,
        info: dict[str, Any],
        settings: evaluations.RestorationConfig,
        *,
        training: Path,
        hiding: Path | None = None,
        given: Sequence[int] = (),
    ) -> None:
        self._scenes, self.settings, self.info = products.Scenes(folder), settings, info
        _check_origin(self._scenes, products.Scenes(training), info)
        present: list[str] = self._scenes.index["bands"]
        if absent := [band for band in info["bands"] if band not in {*present, *settings.missing}]:
            raise user_error(
                f"the scenes in {folder} lack bands of the prior",
                got=", ".join(present),
                expected=f"also {', '.join(absent)}",
                fix="list these bands in `missing` of the restoration, or restore scenes with them",
            )
        self._bands = [present.index(band) if band in present else None for band in info["bands"]]
        names = info["bands"]
        self.coarse = {names.index(band): factor for band, factor in settings.coarse.items()}
        self._is_fine = np.array([not {band} & {*settings.coarse, *settings.missing} for band in names])
        self._given = np.isin(np.arange(len(names)), given)
        self._through_clouds = np.isin(names, settings.through_clouds)
        hide = settings.hide
        self.hiding = None if hide is None else Hiding(hide, seed=settings.seed, masks=hiding)
        stored = {
            key: np.broadcast_to(self._scenes.index[key], len(present))[[band or 0 for band in self._bands]]
            for key in ("scale", "offset")
        }
        self.scaling = BandScaling({**info, **stored})
        self.count = self._scenes.count

    def check_coarse(self) -> None:
        """Raise UserError if a coarse band has several values in a coarse pixel, in a sample of each scene's blocks.

        Interpolated bands, other factors and scenes that do not begin at a coarse pixel have such blocks. Hidden bands
        (`hide`) are not checked: their coarse pixels are computed as means.
        """
        for scene, (band, factor) in itertools.product(range(self.count), self.coarse.items()):
            name, share = self.info["bands"][band], self._constant_share(scene, self._bands[band] or 0, factor)
            if self.hiding is None and share < CONSTANT_SHARE:
                raise user_error(
                    f"`coarse` has {name}: {factor}, and scene {self.column('scene_id', scene)} has other pixels",
                    got=f"{share:.0%} of the blocks of {factor} x {factor} pixels have one value",
                    expected="one value per block: repeated coarse pixels, from the first row and column of the scene",
                    fix="correct the factor, use nearest-neighbor resampling, or crop the scene at a coarse pixel",
                )

    def check_hiding(self, *, size: int) -> None:
        """Raise UserError if no gap matches a tile, before the regression U-Net requires one."""
        assert self.hiding is not None
        self.hiding.window(0, (size, size), slice(0, 1), slice(0, 1))

    def _constant_share(self, scene: int, band: int, factor: int) -> float:
        """Return the share of blocks with one value, of up to 256 x 256 evenly spaced valid blocks; 1 without such blocks."""
        counts = [side // factor for side in self.shape(scene)]
        firsts = [
            np.linspace(0, max(0, count - 1), min(count, SAMPLED_BLOCKS)).astype(int) * factor for count in counts
        ]
        places = np.ix_(*((first[:, None] + np.arange(factor)).ravel() for first in firsts))
        values, mask = (
            array[places].reshape(len(firsts[0]), factor, len(firsts[1]), factor)
            for array in (self._scenes.pixels_of(scene)[band], self._scenes.mask_of(scene))
        )
        is_constant = np.ptp(values, axis=(1, 3)) == 0
        is_valid = (mask == products.Mask.VALID).all(axis=(1, 3))
        return float(is_constant[is_valid].mean()) if is_valid.any() else 1.0

    @property
    def has_truth(self) -> Array:
        """Mask (C, 1, 1) of the bands that the scenes have."""
        return np.array([band is not None for band in self._bands])[:, None, None]

    @property
    def groups(self) -> dict[str, Array]:
        """Masks (C) of the bands by observation: `gaps`, `coarse x2` for each factor, and `missing`."""
        coarse = {
            f"coarse x{factor}": np.array([self.coarse.get(band) == factor for band in range(len(self._is_fine))])
            for factor in sorted(set(self.coarse.values()))
        }
        return {"gaps": self._is_fine, **coarse, "missing": ~np.any([self._is_fine, *coarse.values()], axis=0)}

    def other_dates(self, scene: int) -> list[int]:
        """Return the other scenes on the grid of a scene, the nearest in time first."""
        columns = self._scenes.columns
        grids = list(zip(*(columns[name] for name in ("crs", "transform", "height", "width")), strict=True))
        times = [_seconds(time) for time in columns["sensing_time"]]
        found = [other for other, grid in enumerate(grids) if other != scene and grid == grids[scene] and grid[0]]
        dated = [(abs(times[other] - times[scene]), other) for other in found]
        return [other for distance, other in sorted(dated) if math.isfinite(distance)]

    def shape(self, scene: int) -> tuple[int, int]:
        """Return the shape (H, W) of a scene."""
        columns = self._scenes.columns
        return int(columns["height"][scene]), int(columns["width"][scene])

    def column(self, name: str, scene: int) -> Any:
        """Return a property of a scene, such as `scene_id`, `label`, `crs` or `transform`."""
        return self._scenes.columns[name][scene]

    def _properties(self, scene: int) -> dict[str, Any]:
        return {name: values[scene] for name, values in self._scenes.columns.items()}

    def digest(self, scene: int) -> str:
        """Return a digest of the pixels, mask and properties of a scene, independent of the other scenes."""
        values = hashlib.sha256()
        for array in (self._scenes.pixels_of(scene), self._scenes.mask_of(scene)):
            values.update(np.ascontiguousarray(array).data)
        storage = {key: self._scenes.index[key] for key in ("bands", "dtype", "scale", "offset")}
        return digest(self._properties(scene) | storage | {"stack": 0, "row": 0, "values": values.hexdigest()})

    def conditions(self, scene: int, *, row: float, column: float) -> dict[str, npt.NDArray[np.float32]]:
        """Return the conditions (1, k) of the prior at a pixel; see `Tiles.conditions_at`."""
        return Tiles.conditions_at(self.info, self._properties(scene), row=row, column=column)

    def noise_index(self, scene: int, member: int) -> int:
        """Return the number of the noise of a member, which depends on the scene's name, not on other scenes."""
        return zlib.crc32(self.column("scene_id", scene).encode()) << MEMBER_BITS | member

    def stored(self, scene: int, rows: slice, columns: slice) -> Array:
        """Return a window (C, h, w) in stored numbers; 0 beyond the scene and in bands that the scenes lack."""
        pixels = self._scenes.pixels_of(scene)
        shape = len(self._bands), rows.stop - rows.start, columns.stop - columns.start
        window = np.zeros(shape, pixels.dtype)
        for number, band in enumerate(self._bands):
            if band is not None:
                window[number] = _padded(pixels[band], rows, columns)
        return window

    def physical(self, scene: int, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        """Return a window (C, h, w) in the units of the dataset."""
        return np.asarray(self.scaling.physical(self.stored(scene, rows, columns)[None])[0])

    def clipped(self, scene: int, rows: slice, columns: slice) -> Array:
        """Return a mask (C, h, w) of values outside the range of the scaled units, to which the prior clips them."""
        low, high = (np.array(ends)[:, None, None] for ends in self.scaling.ends(list(range(len(self._bands)))))
        physical = self.physical(scene, rows, columns)
        return np.asarray((physical < low) | (physical > high))

    def truth(self, scene: int, rows: slice, columns: slice) -> Array:
        """Return a mask (h, w) of pixels with valid values, hidden or not."""
        return np.asarray(_padded(self._scenes.mask_of(scene), rows, columns) == products.Mask.VALID)

    def flags(self, scene: int, rows: slice, columns: slice) -> npt.NDArray[np.uint8]:
        """Return the state (C, h, w) of the pixels of a window; gaps of bands that the prior does not generate are outside."""
        states = self.states(scene, rows, columns)
        states[self._given[:, None, None] & (states == Flag.RESTORED)] = Flag.OUTSIDE
        return states

    def states(self, scene: int, rows: slice, columns: slice) -> npt.NDArray[np.uint8]:
        """Return the state (C, h, w) of the pixels of a window for any prior.

        Pixels without data that are farther than one tile from all data are outside, such as beyond the edge of an orbit.
        """
        reach = int(self.info["size"])
        wide = [slice(part.start - reach, part.stop + reach) for part in (rows, columns)]
        mask = _padded(self._scenes.mask_of(scene), *wide)
        has_data = mask != products.Mask.INVALID
        if not has_data[reach:-reach, reach:-reach].all():
            has_data = maximum_filter(has_data, size=2 * reach + 1, mode="constant")
        inner = slice(reach, -reach), slice(reach, -reach)
        height, width = self.shape(scene)
        is_inside = _inside(rows, height)[:, None] & _inside(columns, width) & has_data[inner]
        is_clear = mask[inner] == products.Mask.VALID
        if self.hiding is not None:
            is_clear &= ~self._hidden(scene, rows, columns)
        is_observed = is_clear | (self._through_clouds[:, None, None] & (mask[inner] != products.Mask.INVALID))
        flags = np.where(is_observed & self._is_fine[:, None, None], Flag.OBSERVED, Flag.RESTORED)
        return np.where(is_inside, flags, Flag.OUTSIDE).astype(np.uint8)

    def gaps(self, scene: int, rows: slice, columns: slice) -> Array:
        """Return a mask (h, w) of the pixels that no band observes at any resolution."""
        is_gap = ~self.truth(scene, rows, columns)
        if self.hiding is not None:
            is_gap |= self._hidden(scene, rows, columns)
        return np.asarray(is_gap)

    def _hidden(self, scene: int, rows: slice, columns: slice) -> Array:
        """Return a mask (h, w) of the hidden pixels of a window, a function of seed, scene and place."""
        assert self.hiding is not None
        number = self.noise_index(scene, (1 << MEMBER_BITS) - 1)  # no member has this number
        return self.hiding.window(number, self.shape(scene), rows, columns)


def _check_origin(scenes: products.Scenes, training: products.Scenes, info: dict[str, Any]) -> None:
    """Raise UserError if units or processing level differ from the training scenes; warn of other baselines and pixel sizes."""
    fix = "restore scenes of the same kind, or train a prior on scenes of this kind"
    units, expected_units = _units(scenes.index), _units(info)
    common = [band for band in expected_units if band in units]
    got, expected = (", ".join(found[band] for band in common) for found in (units, expected_units))
    if got != expected:
        raise user_error(f"units of the scenes in {scenes.folder}", got=got, expected=expected, fix=fix)
    levels = set(training.columns["level"])
    if not all(levels) and not datasets.SENTINEL2_GSD_M.keys().isdisjoint(info["bands"]):
        log.warning(
            f"level of scenes in {scenes.folder} or {training.folder} unknown: check that both are L1C or both L2A"
        )
    for scene, level in zip(scenes.columns["scene_id"], scenes.columns["level"], strict=True):
        if level not in levels:
            expected = f"{' or '.join(sorted(str(one or 'no level') for one in levels))}, as the training scenes"
            raise user_error(f"processing level of scene {scene}", got=level or "no level", expected=expected, fix=fix)
    if other := sorted(set(map(str, scenes.columns["baseline"])) - set(map(str, training.columns["baseline"]))):
        log.warning(f"scenes of processing baseline {', '.join(other)}, which the training scenes do not have")
    if not math.isclose(scenes.index["gsd_m"], info["gsd_m"], rel_tol=0.01):
        log.warning(f"scenes with pixels of {scenes.index['gsd_m']:g} m, and a prior trained on {info['gsd_m']:g} m")


def _units(index: dict[str, Any]) -> dict[str, str]:
    """Return the unit of each band of a dataset."""
    units = index["units"].split(", ")
    return dict(zip(index["bands"], units if len(units) > 1 else units * len(index["bands"]), strict=True))


def _seconds(time: str | None) -> float:
    """Return an ISO time in seconds; NaN for invalid text."""
    try:
        return datetime.fromisoformat(time or "").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan


def _inside(part: slice, length: int) -> Array:
    positions = np.arange(part.start, part.stop)
    return (positions >= 0) & (positions < length)


def _padded(array: Array, rows: slice, columns: slice) -> Array:
    """Return a window of an array (H, W), 0 beyond its edges."""
    window = np.zeros((rows.stop - rows.start, columns.stop - columns.start), array.dtype)
    ends = min(rows.stop, array.shape[0]), min(columns.stop, array.shape[1])
    top, left = max(rows.start, 0), max(columns.start, 0)
    if ends[0] > top and ends[1] > left:
        part = array[top : ends[0], left : ends[1]]
        window[top - rows.start : ends[0] - rows.start, left - columns.start : ends[1] - columns.start] = part
    return window
