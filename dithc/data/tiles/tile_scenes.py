"""Stage `tiles`: cut scenes, filter tiles, assign splits, compute statistics of train tiles, and draw a preview.

Legend: N tiles, C bands, S side of a tile; H, W scene.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.artifacts import atomic_write, outputs, summaries
from dithc.core.logging import get_logger, progress, user_error
from dithc.data.images import mosaic, write_png
from dithc.data.npy_writer import NpyWriter, ShardWriter
from dithc.data.parquet import Kind, TableWriter
from dithc.data.prefetch import ahead
from dithc.data.scene import Array, Mask, Reason
from dithc.data.scenes import Scenes
from dithc.data.splits import SPLITS, NearDuplicates, Splitter
from dithc.data.tiles.conditions import Conditions
from dithc.data.tiles.reading import INFO_FILE, SCHEMA_VERSION, TABLE_FILE, BandScaling, Tiles
from dithc.data.tiles.statistics import Histogram
from dithc.data.tiles.windows import TileBatch, TileIterator, TileStatistics

GRID_FILE = "grid.png"
GRID_TILES, GRID_COLUMNS = 64, 8
COLUMN_FILES = {name: f"{name}.column.npy" for name in ("split", "label", "conditions", "mask")}
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
Corner = tuple[int, int, int]  # scene, row and column of the first pixel of a tile
LARGE_GROUP = 0.1
"""Share of all cells in one group of near duplicates above which a warning is logged."""
log = get_logger(__name__)


def cut_tiles(dataset: datasets.DatasetConfig, scenes: Path, *, out: Path, seed: int) -> summaries.TilesSummary:
    """Cut all scenes, write shards, `tiles.parquet`, `dataset.json` and `grid.png`, and return values for the manifest.

    `scenes` is a folder of the stage `scenes`. `out` is replaced on success only. `seed` decides the split of every cell.

    Raises:
        UserError: No scene is as large as a tile, no training tile is left, a display band is missing, an installed
            condition violates its contract, or the disk is full.
    """
    source = Scenes(scenes)
    _check_settings(dataset, source)
    with outputs.OutputFolder(out).replaced() as temporary:
        conditions = Conditions(
            source.columns, size=dataset.tiles.size, added=dataset.conditions, names=COLUMNS, masks=dataset.tiles.masks
        )
        with TableWriter(temporary / TABLE_FILE, columns=COLUMNS | conditions.columns) as table:
            cutter = _Cutter(dataset, source, temporary, table, conditions, seed=seed)
            with progress(total=source.count, label="tiles", unit="scene") as bar:
                for number in range(len(source.index["stacks"])):
                    cutter.stack(number, bar)
            shards = cutter.shards.close()
            for column in cutter.columns.values():
                column.close()
        numbers = cutter.numbers()
        _check_train(numbers)
        info = _info(dataset, source, cutter, numbers) | {"shards": shards, "seed": seed}
        atomic_write(temporary / INFO_FILE, json.dumps(info, indent=1) + "\n")
        _draw_grid(Tiles(temporary), temporary / GRID_FILE)
    _report(dataset, source, cutter, numbers)
    return numbers


class _Cutter:
    """Cutter of stacks, one after the other, which also detects duplicates and collects statistics of train tiles."""

    def __init__(
        self,
        dataset: datasets.DatasetConfig,
        source: Scenes,
        folder: Path,
        table: TableWriter,
        conditions: Conditions,
        *,
        seed: int,
    ) -> None:
        self.source, self.table, self.conditions = source, table, conditions
        kinds: dict[str, tuple[tuple[int, ...], str]] = {"split": ((), "uint8"), "label": ((), "int32")}
        if conditions.model:
            kinds["conditions"] = (len(conditions.model),), "float32"
        if dataset.tiles.masks:
            kinds["mask"] = (-(-(dataset.tiles.size**2) // 8),), "uint8"
        self.columns = {
            name: NpyWriter(folder / COLUMN_FILES[name], shape=shape, dtype=dtype)
            for name, (shape, dtype) in kinds.items()
        }
        self.near, joined = find_near(dataset, source, seed=seed)
        self.splitter = Splitter(dataset.split, seed=seed, joined=joined)
        self.tiles = TileIterator(dataset.tiles, source, self.splitter)
        size, bands, dtype = dataset.tiles.size, len(source.index["bands"]), source.index["dtype"]
        self.shards = ShardWriter(folder, "shard", shape=(bands, size, size), dtype=dtype)
        self.histograms = {split: Histogram(bands, dtype) for split in SPLITS}
        self.pixel_counts: Counter[str] = Counter()  # pixels of each split, valid or not
        self.reasons: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.duplicates = 0
        self._first_tiles: dict[bytes, tuple[str, str]] = {}

    def stack(self, number: int, bar: progress) -> None:
        first, last = self.source.firsts[number : number + 2]
        num_finished, any_tile = 0, False
        for batch, measured in ahead(self.tiles.stack(number)):
            any_tile = True
            self._add_batch(batch, measured, first)
            bar.update(batch.scene[-1] - num_finished, tiles=str(sum(self.splits.values())))
            num_finished = batch.scene[-1]
        for position in () if any_tile else range(first, last):
            self._reject_small(position)
        bar.update(last - first - num_finished)

    def _reject_small(self, position: int) -> None:
        reason = str(Reason.SMALLER_THAN_TILE)
        self.reasons[reason] += 1
        scene = {name: self.source.columns[name][position] for name in ("scene_id", "label")}
        self.table.add(tile_id=scene["scene_id"], status="rejected", reason=reason, **scene)

    def _add_batch(self, batch: TileBatch, measured: TileStatistics, first: int) -> None:
        scenes = [first + row for row in batch.scene]
        conditions = self.conditions.compute(scenes, batch.y, batch.x)
        rows = [self._row(batch, measured, i, scene) for i, scene in enumerate(scenes)]
        for i, row in enumerate(rows):
            row |= {name: values[i] for name, values in conditions.items()}
        accepted = [i for i, row in enumerate(rows) if row["status"] == "accepted"]
        written = self.shards.append(batch.pixels[accepted])
        for i, (shard, shard_row) in zip(accepted, written, strict=True):
            rows[i] |= {"shard": shard, "row": shard_row}
        self._append_columns([rows[i] for i in accepted])
        counted = measured.valid  # (N, S, S)
        if "mask" in self.columns:
            counted = batch.mask == Mask.VALID
            self.columns["mask"].append(np.packbits(counted[accepted].reshape(-1, counted[0].size), axis=1))
        for split, histogram in self.histograms.items():
            if indices := [i for i in accepted if rows[i]["split"] == split]:
                histogram.add(batch.pixels[indices], counted[indices])
                self.pixel_counts[split] += measured.valid[indices].size
        for row in rows:
            self.table.add(**row)

    def _append_columns(self, rows: list[dict[str, Any]]) -> None:
        names = {"split", "label", *(entry["column"] for entry in self.conditions.model)}
        columns = {name: [row[name] for row in rows] for name in names}
        self.columns["split"].append(np.array([SPLITS.index(split) for split in columns["split"]], np.uint8))
        self.columns["label"].append(np.array(columns["label"], np.int32))
        if "conditions" in self.columns:
            self.columns["conditions"].append(self.conditions.model_input(columns))

    def _row(self, batch: TileBatch, measured: TileStatistics, i: int, position: int) -> dict[str, Any]:
        scale, offset = (np.asarray(self.source.index[name], float) for name in ("scale", "offset"))
        scene_id = self.source.columns["scene_id"][position]
        row: dict[str, Any] = {
            "tile_id": f"{scene_id}/{batch.y[i]:05d}_{batch.x[i]:05d}",
            "scene_id": scene_id,
            "y": int(batch.y[i]),
            "x": int(batch.x[i]),
            "cell": batch.cells[i],
            "label": self.source.columns["label"][position],
            "valid_frac": float(measured.valid_frac[i]),
            "cloud_frac": float(measured.cloud_frac[i]),
            "mean": (measured.mean[i] * scale + offset).tolist(),
            "std": (measured.std[i] * scale).tolist(),
        }
        split = batch.splits[i]
        reason = self.tiles.reason(measured, i) or (Reason.ACROSS_SPLITS if split is None else None)
        if reason is not None:
            self.reasons[str(reason)] += 1
            return row | {"status": "rejected", "reason": str(reason)}
        assert split is not None
        return row | {"status": "accepted", **self._identify(batch.pixels[i], row["tile_id"], split)}

    def _identify(self, pixels: Array, tile_id: str, split: str) -> dict[str, Any]:
        """Return hash and split of an accepted tile; a tile with equal pixels gets the split of the first of them."""
        digest = hashlib.sha256(pixels.data)
        original, first_split = self._first_tiles.setdefault(digest.digest(), (tile_id, split))
        self.duplicates += original != tile_id
        self.splits[first_split] += 1
        duplicate_of = original if original != tile_id else None
        return {"tile_sha256": digest.hexdigest(), "split": first_split, "duplicate_of": duplicate_of}

    def numbers(self) -> summaries.TilesSummary:
        numbers: summaries.TilesSummary = {
            "accepted": self.splits.total(),
            "rejected": dict(self.reasons),
            "splits": {name: self.splits[name] for name in SPLITS},
            "duplicates": self.duplicates,
            "moved": self.tiles.num_moved,
            "pixels": self.tiles.pixels,
            "uncovered_pixels": self.tiles.outside,
            "bands": self.source.index["bands"],
            "size": self.tiles.settings.size,
        }
        if self.near is not None:
            numbers["compared"], numbers["groups"] = self.near.compared, self.near.groups
            numbers["largest_group"] = self.near.largest
        return numbers


def find_near(
    dataset: datasets.DatasetConfig, source: Scenes, *, seed: int
) -> tuple[NearDuplicates | None, dict[str, str]]:
    """Compare all tiles before cutting if near duplicates must share a split, and again while joins move tiles.

    Returns the appearance of tiles and the joined cells of `NearDuplicates.joined`.
    """
    split = dataset.split
    if split.duplicates != "near":
        return None, {}
    near, joined, added = NearDuplicates(), dict[str, str](), set[Corner]()
    while _add_tiles(near, source, Splitter(split, seed=seed, joined=joined), dataset, added):
        joined = near.joined()
        if not joined or split.cell_size_m is None:  # no tile can move
            break
    return near, joined


def _add_tiles(
    near: NearDuplicates, source: Scenes, splitter: Splitter, dataset: datasets.DatasetConfig, added: set[Corner]
) -> bool:
    """Compare the tiles with corners (scene, y, x) that are not in `added`; return whether there were any."""
    tiles, before = TileIterator(dataset.tiles, source, splitter), len(added)
    unscaled = [{"low": 0.0, "high": 1.0}] * len(source.index["bands"])
    scaling = BandScaling({**source.index, "statistics": unscaled, "display": dataset.rendering.model_dump()})
    with progress(total=len(source.index["stacks"]), label="near duplicates", unit="stack") as bar:
        for number in range(len(source.index["stacks"])):
            for batch, measured in ahead(tiles.stack(number)):
                scenes = [source.firsts[number] + row for row in batch.scene]
                corners = list(zip(scenes, batch.y.tolist(), batch.x.tolist(), strict=True))
                new = [i for i, corner in enumerate(corners) if corner not in added and not tiles.reason(measured, i)]
                near.add(scaling.display(scaling.physical(batch.pixels[new])), [batch.cells[i] for i in new])
                added.update(corners[i] for i in new)
            bar.update(1)
    return len(added) > before


def _check_settings(dataset: datasets.DatasetConfig, source: Scenes) -> None:
    bands, size = source.index["bands"], dataset.tiles.size
    absent = [band for band in dataset.rendering.bands if band not in bands]
    if absent:
        raise user_error(
            "`rendering.bands` lists a band that the dataset does not have",
            got=", ".join(absent),
            expected=f"three of {', '.join(bands)}",
            fix="correct `rendering.bands`",
        )
    heights, widths = source.columns["height"], source.columns["width"]
    if all(min(sides) < size for sides in zip(heights, widths, strict=True)):
        largest = max(zip(heights, widths, strict=True), key=min)
        raise user_error(
            "the tile is larger than every scene",
            got=f"tiles of {size} x {size} pixels; the largest scene has {largest[0]} x {largest[1]}",
            expected="scenes at least as large as a tile",
            fix=f"set `tiles.size` to {min(largest)} or less, or add larger scenes",
        )


def _check_train(numbers: summaries.TilesSummary) -> None:
    if not numbers["splits"]["train"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in numbers["rejected"].items()) or "none"
        raise user_error(
            "no tile is left for training",
            got=f"accepted by split: {numbers['splits']}; rejected: {reasons}",
            expected="at least one train tile",
            fix="relax `tiles.min_valid_fraction`, `max_cloud_fraction` or `min_std`, set a smaller `split.cell_size_tiles` "
            "or a larger `split.train_fraction`, or add scenes",
        )


def _report(dataset: datasets.DatasetConfig, source: Scenes, cutter: _Cutter, numbers: summaries.TilesSummary) -> None:
    title = dataset.title
    outside, pixels, moved = cutter.tiles.outside, cutter.tiles.pixels, cutter.tiles.num_moved
    if outside:
        log.info(
            f"{outside} of {pixels} pixels ({outside / pixels:.1%}) at scene edges are in no tile of "
            f"{dataset.tiles.size}; a smaller `tiles.size` or `tiles.stride` covers more"
        )
    for split in cutter.splitter.nonempty_splits():
        if not numbers["splits"][split]:
            log.warning(f"no tile of {title!r} is in split {split!r}: {source.count} scenes have too few places")
    if dataset.split.cell_size_m is not None and not any(source.columns["transform"]):
        log.warning(f"no scene of {title!r} has a georeference: `split.cell_size_m` and `buffer_m` have no effect")
    if cutter.near is not None:
        log.info(f"{cutter.near.compared} tiles compared with each other, {cutter.near.groups} groups of cells joined")
        if cutter.near.largest > LARGE_GROUP * cutter.near.cells:
            log.warning(
                f"{cutter.near.largest} of {cutter.near.cells} cells of {title!r} have tiles that look the same and "
                "are in one split: most of the dataset may be copies; `split.duplicates: exact` joins only equal pixels"
            )
    if across := numbers["rejected"].get(Reason.ACROSS_SPLITS, 0) + moved:
        log.info(f"{across} tiles touched two splits: {moved} were moved into one split, the others rejected")


def _info(
    dataset: datasets.DatasetConfig, source: Scenes, cutter: _Cutter, numbers: summaries.TilesSummary
) -> dict[str, Any]:
    index = source.index
    units = {"scale": index["scale"], "offset": index["offset"]}
    described = cutter.histograms["train"].describe(**units, clip=dataset.tiles.clip_fraction)
    ranges = {
        split: histogram.ranges(described, pixels=cutter.pixel_counts[split], **units)
        for split, histogram in cutter.histograms.items()
        if cutter.pixel_counts[split]
    }
    counts = ("accepted", "rejected", "splits", "duplicates", "moved", "pixels", "uncovered_pixels")
    same = ("kind", "bands", "units", "scale", "offset", "dtype", "gsd_m", "classes")
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: index[name] for name in same},
        "size": dataset.tiles.size,
        "stride": dataset.tiles.stride or dataset.tiles.size,
        "counts": {name: dict(numbers)[name] for name in counts},
        "statistics": [{"band": band, **values} for band, values in zip(index["bands"], described, strict=True)],
        "ranges": {
            split: [{"band": band, **values} for band, values in zip(index["bands"], band_ranges, strict=True)]
            for split, band_ranges in ranges.items()
        },
        "columns": {name: COLUMN_FILES[name] for name in cutter.columns},
        "conditions": cutter.conditions.model,
        "display": dataset.rendering.model_dump(mode="json"),
        "split": dataset.split.model_dump(mode="json"),
    }


def _draw_grid(tiles: Tiles, path: Path) -> None:
    train = tiles.rows("train")
    rows = train[np.linspace(0, len(train) - 1, min(GRID_TILES, len(train))).round().astype(np.int64)]
    write_png(path, mosaic(tiles.rgb(rows), columns=GRID_COLUMNS))
