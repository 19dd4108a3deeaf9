"""The stage `tiles`: scenes cut into tiles of one size, judged, split by place, measured on the train tiles, and shown.

Legend: N tiles, C bands, S side of a tile; H, W scene.
"""

import hashlib
import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from dithc.config import datasets
from dithc.data.grid import draw_grid
from dithc.data.npy import ShardWriter, release, whole_folder
from dithc.data.raster import GeoTransform
from dithc.data.scene import Array, Reason
from dithc.data.scenes import Scenes
from dithc.data.split import SPLITS, Ints, Splitter
from dithc.data.statistics import Histogram
from dithc.data.table import Kind, TableWriter
from dithc.data.tiles import INFO_FILE, SCHEMA_VERSION, TABLE_FILE, Tiles
from dithc.data.windows import Cut, Measured, covered_length, cuts, measure
from dithc.log import logger, problem, progress
from dithc.runs import atomic_write, outcome

GRID_FILE = "grid.png"
OWN_FILES = (TABLE_FILE, INFO_FILE, GRID_FILE, "shard-*.npy")
COLUMNS: dict[str, Kind] = {
    "tile_id": "text",
    "status": "text",
    "reason": "text",
    "shard": "int",
    "row": "int",
    "scene_id": "text",
    "y": "int",
    "x": "int",
    "split": "text",
    "cell": "text",
    "label": "int",
    "valid_frac": "float",
    "cloud_frac": "float",
    "mean": "floats",
    "std": "floats",
    "tile_sha256": "text",
    "duplicate_of": "text",
}
log = logger(__name__)


def cut_tiles(dataset: datasets.Dataset, scenes: Path, *, out: Path, seed: int) -> outcome.Tiles:
    """Cuts all scenes and writes shards, `tiles.parquet`, `dataset.json` and `grid.png`.

    Args:
        dataset: the data set; its sections `tiles`, `split`, `scaling` and `display` decide.
        scenes: folder that the stage `scenes` wrote.
        out: folder to make; what it held before is replaced when all is well, and untouched otherwise.
        seed: decides the split of every cell.

    Returns:
        Numbers for the manifest: accepted, rejected by reason, splits, duplicates, pixels and those in no tile, bands, size.

    Raises:
        UserError: no scene is as large as a tile, no train tile is left, a display band is missing, or the disk is full.
    """
    source = Scenes(scenes)
    _check_display(dataset, source.index["bands"])
    _check_size(dataset.tiles.size, source)
    with whole_folder(out, own=OWN_FILES) as temporary:
        with TableWriter(temporary / TABLE_FILE, columns=COLUMNS) as table:
            cutter = _Cutter(dataset, source, temporary, table, seed=seed)
            with progress(total=source.count, label="tiles", unit="scene") as bar:
                for number in range(len(source.index["stacks"])):
                    cutter.stack(number, bar)
            shards = cutter.shards.close()
        numbers = cutter.numbers()
        _check_train(numbers)
        info = _info(dataset, source, cutter, numbers) | {"shards": shards, "seed": seed}
        atomic_write(temporary / INFO_FILE, json.dumps(info, indent=1) + "\n")
        draw_grid(Tiles(temporary), temporary / GRID_FILE)
    if cutter.outside:
        log.info(
            f"{cutter.outside} of {cutter.pixels} pixels ({cutter.outside / cutter.pixels:.1%}) are in no tile of "
            f"{dataset.tiles.size}: edges of scenes; a smaller `tiles.size` or `tiles.stride` reaches more"
        )
    for split in cutter.splitter.wanted():
        if not numbers["splits"][split]:
            log.warning(
                f"no tile of {dataset.title!r} is in split {split!r}: {source.count} scenes have too few places"
            )
    return numbers


class _Cutter:
    """Cuts stacks one after the other; what it has seen decides on duplicates, and the train tiles on statistics."""

    def __init__(
        self, dataset: datasets.Dataset, source: Scenes, folder: Path, table: TableWriter, *, seed: int
    ) -> None:
        self.settings, self.source, self.table = dataset.tiles, source, table
        self.splitter = Splitter(dataset.split, seed=seed)
        size, bands, dtype = dataset.tiles.size, len(source.index["bands"]), source.index["dtype"]
        self.shards = ShardWriter(folder, "shard", shape=(bands, size, size), dtype=dtype)
        self.histogram = Histogram(bands, dtype)
        self.reasons: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.duplicates = 0
        self.pixels = self.outside = 0
        self._seen: dict[bytes, tuple[str, str]] = {}

    def stack(self, number: int, bar: progress) -> None:
        """Cuts all scenes of a stack."""
        pixels, mask = self.source.stack(number)
        first, size = self.source.firsts[number], self.settings.size
        stride = self.settings.stride or size
        covered = prod(covered_length(side, size=size, stride=stride) for side in mask.shape[1:])
        self.pixels += mask.size
        self.outside += mask.size - len(mask) * covered
        if min(pixels.shape[2:]) < size:
            for position in range(first, first + len(pixels)):
                self._small(position)
            bar.update(len(pixels))
            return
        last = 0
        for cut in cuts(pixels, mask, size=size, stride=stride):
            self._tiles(cut, first)
            release(pixels)
            bar.update(cut.scene[-1] - last, tiles=str(sum(self.splits.values())))
            last = cut.scene[-1]
        bar.update(len(pixels) - last)

    def _small(self, position: int) -> None:
        reason = str(Reason.SMALLER_THAN_TILE)
        self.reasons[reason] += 1
        scene = {name: self.source.columns[name][position] for name in ("scene_id", "label")}
        self.table.add(tile_id=scene["scene_id"], status="rejected", reason=reason, **scene)

    def _tiles(self, cut: Cut, first: int) -> None:
        """Judges tiles, writes the accepted ones, and a row for each."""
        measured = measure(cut)
        places = [self._place(first + row, cut.y[i : i + 1], cut.x[i : i + 1]) for i, row in enumerate(cut.scene)]
        rows = [self._row(cut, measured, i, first + row, places[i]) for i, row in enumerate(cut.scene)]
        accepted = [i for i, row in enumerate(rows) if row["status"] == "accepted"]
        written = self.shards.append(cut.pixels[accepted])
        for i, (shard, shard_row) in zip(accepted, written, strict=True):
            rows[i] |= {"shard": shard, "row": shard_row}
        train = [i for i in accepted if rows[i]["split"] == "train"]
        if train:
            self.histogram.add(cut.pixels[train], measured.valid[train])
        for row in rows:
            self.table.add(**row)

    def _place(self, position: int, y: Ints, x: Ints) -> tuple[str, str | None]:
        columns = self.source.columns
        transform: GeoTransform | None = columns["transform"][position] and tuple(columns["transform"][position])
        place = columns["scene_id"][position] if transform is None else columns["crs"][position]
        cells, splits = self.splitter.assign(y, x, size=self.settings.size, place=place, transform=transform)
        return cells[0], splits[0]

    def _row(
        self, cut: Cut, measured: Measured, i: int, position: int, place: tuple[str, str | None]
    ) -> dict[str, Any]:
        cell, split = place
        scale, offset = self.source.index["scale"], self.source.index["offset"]
        scene_id = self.source.columns["scene_id"][position]
        row: dict[str, Any] = {
            "tile_id": f"{scene_id}/{cut.y[i]:05d}_{cut.x[i]:05d}",
            "scene_id": scene_id,
            "y": int(cut.y[i]),
            "x": int(cut.x[i]),
            "cell": cell,
            "label": self.source.columns["label"][position],
            "valid_frac": float(measured.valid_frac[i]),
            "cloud_frac": float(measured.cloud_frac[i]),
            "mean": (measured.mean[i] * scale + offset).tolist(),
            "std": (measured.std[i] * scale).tolist(),
        }
        reason = self._reason(measured, i, split)
        if reason is not None:
            self.reasons[str(reason)] += 1
            return row | {"status": "rejected", "reason": str(reason)}
        assert split is not None
        return row | {"status": "accepted", **self._identity(cut.pixels[i], row["tile_id"], split)}

    def _reason(self, measured: Measured, i: int, split: str | None) -> Reason | None:
        settings = self.settings
        if measured.valid_frac[i] < settings.min_valid or not measured.valid_frac[i]:
            return Reason.TOO_LITTLE_VALID
        if measured.cloud_frac[i] > settings.max_cloud:
            return Reason.TOO_CLOUDY
        if measured.std[i].max() <= settings.min_std:
            return Reason.CONSTANT
        return Reason.ACROSS_SPLITS if split is None else None

    def _identity(self, pixels: Array, tile_id: str, split: str) -> dict[str, Any]:
        """Hash and split of an accepted tile; the same pixels seen before decide the split, whatever their place."""
        digest = hashlib.sha256(pixels.data)
        original, first_split = self._seen.setdefault(digest.digest(), (tile_id, split))
        self.duplicates += original != tile_id
        self.splits[first_split] += 1
        duplicate_of = original if original != tile_id else None
        return {"tile_sha256": digest.hexdigest(), "split": first_split, "duplicate_of": duplicate_of}

    def numbers(self) -> outcome.Tiles:
        """What goes into the manifest."""
        return {
            "accepted": self.splits.total(),
            "rejected": dict(self.reasons),
            "splits": {name: self.splits[name] for name in SPLITS},
            "duplicates": self.duplicates,
            "pixels": self.pixels,
            "pixels_outside": self.outside,
            "bands": self.source.index["bands"],
            "size": self.settings.size,
        }


def _check_display(dataset: datasets.Dataset, bands: list[str]) -> None:
    absent = [band for band in dataset.display.bands if band not in bands]
    if absent:
        raise problem(
            "`display.bands` names a band that the data set does not have",
            got=", ".join(absent),
            expected=f"three of {', '.join(bands)}",
            remedy="correct `display.bands`",
        )


def _check_size(size: int, source: Scenes) -> None:
    heights, widths = source.columns["height"], source.columns["width"]
    if all(min(sides) < size for sides in zip(heights, widths, strict=True)):
        largest = max(zip(heights, widths, strict=True), key=min)
        raise problem(
            "the tile is larger than every scene",
            got=f"tiles of {size} x {size} pixels; the largest scene has {largest[0]} x {largest[1]}",
            expected="scenes at least as large as a tile",
            remedy=f"set `tiles.size` to {min(largest)} or less, or give larger scenes",
        )


def _check_train(numbers: outcome.Tiles) -> None:
    if not numbers["splits"]["train"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in numbers["rejected"].items()) or "none"
        raise problem(
            "no tile is left for training",
            got=f"accepted by split: {numbers['splits']}; rejected: {reasons}",
            expected="at least one train tile",
            remedy="loosen `tiles.min_valid`, `max_cloud` or `min_std`, set a smaller `split.cell_tiles` or a larger "
            "`split.train`, or give more scenes",
        )


def _info(dataset: datasets.Dataset, source: Scenes, cutter: _Cutter, numbers: outcome.Tiles) -> dict[str, Any]:
    index, scaling = source.index, dataset.scaling
    described = cutter.histogram.describe(
        scale=index["scale"], offset=index["offset"], low=scaling.low_percentile, high=scaling.high_percentile
    )
    same = ("kind", "bands", "units", "scale", "offset", "dtype", "gsd_m", "classes")
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: index[name] for name in same},
        "size": dataset.tiles.size,
        "stride": dataset.tiles.stride or dataset.tiles.size,
        "counts": {
            name: numbers[name] for name in ("accepted", "rejected", "splits", "duplicates", "pixels", "pixels_outside")
        },
        "statistics": [{"band": band, **values} for band, values in zip(index["bands"], described, strict=True)],
        "scaling": scaling.model_dump(mode="json"),
        "display": dataset.display.model_dump(mode="json"),
        "split": dataset.split.model_dump(mode="json"),
    }
