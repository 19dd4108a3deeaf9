"""Mosaics of restored scenes: observation, mean, members, deviation, truth and error, one row per scene.

Legend: C bands, h, w part of a scene.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest
from dithc.data import Tiles, mosaic, products
from dithc.report.collect import restoration_record
from dithc.report.documents import read_json
from dithc.report.figures import canvas
from dithc.report.galleries.gallery import GRAY, Gallery, build_mosaic
from dithc.report.records import ReportRecords, RestorationRecord

ROWS, SIDE, MEMBERS = 6, 128, 3
GAPS, MOST_PIXELS = 0.4, 1 << 24  # share of restored pixels in a part; of a scene that is searched for a part
OBSERVED, RESTORED = 1, 2  # states of a pixel in flags.tif

Values = NDArray[np.float32]
RGB = NDArray[np.uint8]


def restoration_gallery(records: ReportRecords, item: RestorationRecord) -> Gallery | None:
    """Return parts of the first scenes with gaps; None without tiles of the prior, scenes or coarse pixels."""
    prior, dataset = next(run for run in records.runs if run.name == item.prior), records.dataset(item.dataset)
    tiles, scenes = records.dataset(prior.dataset).tiles_folder, dataset.scenes_folder
    rows = None if tiles is None or scenes is None else _rows(item, tiles, scenes)
    if rows is None:
        return None
    columns = ", ".join(rows.columns)
    text = f"{rows.scenes} scenes of {dataset.title}, one per row; columns: {columns}; bands {rows.bands}."
    caption = f"{columns}. Bands {rows.bands}; gray: no observation or truth. White in maps: {rows.white}."
    picture = build_mosaic(item.name, rows.images, text=text, caption=caption, columns=len(rows.columns))
    side = rows.images.shape[-1]
    note = f"The first {rows.scenes} of {item.scenes} scenes, {side} x {side} pixels."
    return Gallery(title=f"Restoration {item.name}: {dataset.title}", note=note, pictures=[picture], layout="rows")


def draw_restoration(manifest: Path, *, tiles: Path, scenes: Path) -> tuple[bytes, str] | None:
    """Return the images of `restoration_gallery` as PNG, from a manifest and the folders of its inputs, and their columns."""
    rows = _rows(restoration_record(manifest, Manifest.read(manifest, stage="restore")), tiles, scenes)
    if rows is None:
        return None
    return canvas.encode_png(mosaic(rows.images, columns=len(rows.columns), level=GRAY)), ", ".join(rows.columns)


class _Rows(NamedTuple):
    """Images (n, 3, S, S), one row with `columns` per scene; maps are white at the value `white`."""

    images: RGB
    columns: list[str]
    bands: str
    white: str
    scenes: int


def _rows(item: RestorationRecord, tiles: Path, scenes: Path) -> _Rows | None:
    folders, multiple = item.folders[:ROWS], int(np.lcm.reduce([*item.coarse.values(), 1]))
    side = min([SIDE, *(length for folder in folders for length in _shape(folder))]) // multiple * multiple
    if not folders or not side:
        return None
    views = [_SceneView(Tiles(tiles), products.Scenes(scenes), folder, item, side, multiple) for folder in folders]
    white = max(float(np.nanpercentile(np.concatenate([view.deviation.ravel() for view in views]), 99)), 1e-12)
    members = range(0, item.members, 2)[:MEMBERS]  # independent of each other
    columns = ["observation", "mean", *(f"member {number}" for number in members)]
    columns += ["standard deviation", *(["truth", "absolute error"] if item.scores else [])]
    images = [image for view in views for image in view.images(white, members)]
    return _Rows(np.stack(images), columns, ", ".join(views[0].bands), f"{white:.3g} {views[0].units}", len(views))


def _shape(folder: Path) -> tuple[int, int]:
    """Return height and width of a restored scene."""
    _, height, width = read_json(folder / "scene.json")["shape"]
    return height, width


def _starts(folder: Path, side: int, multiple: int, is_fine: list[bool]) -> list[int]:
    """Return first row and column of a part near the center, of which about a share of `GAPS` was restored."""
    lengths = _shape(folder)
    center = [(length - side) // 2 // multiple * multiple for length in lengths]
    if math.prod(lengths) > MOST_PIXELS:
        return center
    flags = products.read_window(folder / "flags.tif", *(slice(0, length) for length in lengths))
    sums = np.pad((flags[is_fine] == RESTORED).any(axis=0).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    counts = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    shares = counts[::multiple, ::multiple] / side**2  # of each part, by its first row and column
    rows, columns = multiple * np.indices(shares.shape)
    distances = np.hypot(rows - center[0], columns - center[1]) / max(lengths)
    best = np.unravel_index(np.argmin(np.abs(shares - GAPS) + 0.1 * distances), shares.shape)
    return [multiple * int(place) for place in best]


class _SceneView:
    """Part of a restored scene in three bands: the display bands, or coarse and missing bands if there are any."""

    def __init__(
        self, tiles: Tiles, scenes: products.Scenes, folder: Path, item: RestorationRecord, side: int, multiple: int
    ) -> None:
        self._folder, self._item, self._stretch = folder, item, tiles.stretch
        names, self.units = list(tiles.info["bands"]), str(tiles.info["units"])
        display = [names.index(band) for band in tiles.info["display"]["bands"]]
        self._shown = ([names.index(band) for band in (*item.coarse, *item.missing)] * 3)[:3] or display
        self._is_display = self._shown == display
        self.bands = [names[index] for index in self._shown]
        is_fine = [name not in {*item.coarse, *item.missing} for name in names]
        self._size, starts = side, _starts(folder, side, multiple, is_fine)
        self._rows, self._columns = (slice(first, first + side) for first in starts)
        flags = products.read_window(folder / "flags.tif", self._rows, self._columns)
        self._is_gap = (flags[is_fine] != OBSERVED).any(axis=0)
        self._mean = self._read("mean")
        self.deviation: Values = self._read("deviation").mean(axis=0)
        present = scenes.index["bands"]
        scale, offset = (np.broadcast_to(scenes.index[key], len(present)) for key in ("scale", "offset"))
        number = scenes.columns["scene_id"].index(read_json(folder / "scene.json")["scene_id"])
        pixels, valid = (
            scenes.pixels_of(number),
            scenes.mask_of(number)[self._rows, self._columns] == products.Mask.VALID,
        )
        self._truth = np.full_like(self._mean, np.nan)
        for index, band in enumerate(self.bands):
            if band in present:
                place = present.index(band)
                values = pixels[place, self._rows, self._columns] * scale[place] + offset[place]
                self._truth[index] = np.where(valid, values, np.nan)

    def images(self, white: float, members: Sequence[int]) -> list[RGB]:
        """Return the row of the mosaic; maps are white at the value `white`."""
        error = np.abs(self._mean - self._truth).mean(axis=0)  # NaN without truth
        sampled = [self._rgb(self._read(f"member-{number:02d}")) for number in members]
        row = [self._observation(), self._rgb(self._mean), *sampled, _gray(self.deviation / white)]
        return [*row, self._rgb(self._truth), _gray(error / white)] if self._item.scores else row

    def _observation(self) -> RGB:
        """Return observed pixels, means of complete coarse pixels, and gray elsewhere."""
        values = np.where(self._is_gap, np.nan, self._mean)
        for index, band in enumerate(self.bands):
            factor = self._item.coarse.get(band, 1)
            if band in self._item.missing:
                values[index] = np.nan
            elif factor > 1:
                pixels = np.where(self._is_gap, np.nan, self._truth[index])
                blocks = pixels.reshape(self._size // factor, factor, -1, factor).mean(axis=(1, 3))
                values[index] = blocks.repeat(factor, axis=0).repeat(factor, axis=1)
        return self._rgb(values)

    def _read(self, name: str) -> Values:
        return np.asarray(
            products.read_window(self._folder / f"{name}.tif", self._rows, self._columns, bands=self._shown), np.float32
        )

    def _rgb(self, values: Values) -> RGB:
        """Return values (3, h, w) of the shown bands as RGB; gray if a band is NaN."""
        bands = None if self._is_display else self._shown
        rgb = np.asarray(self._stretch.levels(np.nan_to_num(values)[None], bands=bands)[0][0])
        return np.where(np.isnan(values).any(axis=0), np.uint8(GRAY), rgb)


def _gray(levels: Values) -> RGB:
    """Return a map (h, w) of 0 to 1 as gray levels (3, h, w); NaN has the level of unobserved pixels."""
    values = np.where(np.isnan(levels), GRAY, np.clip(np.nan_to_num(levels), 0, 1) * 255).astype(np.uint8)
    return np.broadcast_to(values, (3, *levels.shape)).copy()
