"""Reading of a dataset of tiles: stored numbers, the fixed map to [-1, 1] and the fixed stretch to 8-bit RGB.

Legend: N tiles, C bands, H, W tile.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest
from dithc.core.integrity import parse_json
from dithc.core.logging import UserError, user_error
from dithc.data.npy_writer import check_length, open_npy
from dithc.data.parquet import read_columns
from dithc.data.splits import SPLITS, EarthGrid
from dithc.data.tiles.condition_maps import (
    CLOUD,
    NUM_VIEWS,
    inputs_of_values,
    network_inputs,
    single_inputs,
)

TABLE_FILE, INFO_FILE = "tiles.parquet", "dataset.json"
SCHEMA_VERSION = 1
FIX = "remove the folder's manifest.json and run the stage again (`dithc tiles`)"

Rows = npt.NDArray[np.int64]


class BandScaling:
    """The two fixed maps of a dataset, from the content of dataset.json; the same for real and generated tiles."""

    def __init__(self, info: dict[str, Any]) -> None:
        shape = (1, len(info["bands"]), 1, 1)
        self._scale, self._offset = (  # (1, C, 1, 1), or (1, 1, 1, 1) if all bands share it
            np.asarray(info[name], np.float32).reshape(1, -1, 1, 1) for name in ("scale", "offset")
        )
        self._low = np.array([band["low"] for band in info["statistics"]], np.float32).reshape(shape)
        self._high = np.array([band["high"] for band in info["statistics"]], np.float32).reshape(shape)
        self._shown = [info["bands"].index(band) for band in info["display"]["bands"]]
        self._black, self._white = (
            np.broadcast_to(np.asarray(info["display"][end], np.float32), 3).reshape(1, 3, 1, 1)
            for end in ("low", "high")
        )

    def physical(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Convert stored numbers (N, C, H, W) to the dataset's units."""
        return np.asarray(stored.astype(np.float32) * self._scale + self._offset)

    def scaled(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Scale stored numbers (N, C, H, W) to float32 in [-1, 1], from low to high of each band, with clipping."""
        unit: npt.NDArray[np.float32] = (self.physical(stored) - self._low) / (self._high - self._low)
        return np.clip(unit * 2 - 1, np.float32(-1.0), np.float32(1.0))  # (N, C, H, W)

    def unscale(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Convert values in [-1, 1] to the dataset's units, float32 (N, C, H, W)."""
        unit = (x.astype(np.float32) + 1) / 2
        return unit * (self._high - self._low) + self._low  # (N, C, H, W)

    def display(self, physical: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Convert values (N, C, H, W) in the dataset's units to RGB (N, 3, H, W): linear, floor(255 v + 0.5)."""
        return self.levels(physical[:, self._shown])[0]

    def ends(self, bands: list[int]) -> tuple[list[float], list[float]]:
        """Return low and high of bands, by index, in the dataset's units."""
        return self._low[0, bands, 0, 0].tolist(), self._high[0, bands, 0, 0].tolist()

    def levels(self, values: npt.NDArray[Any], *, bands: list[int] | None = None) -> tuple[npt.NDArray[np.uint8], int]:
        """Return three bands (N, 3, H, W) in physical units as RGB, and the number of pixels clipped in any band.

        `bands` are indices of bands stretched from their low to their high; None uses the ends of the display.
        """
        low, high = (self._black, self._white) if bands is None else (self._low[:, bands], self._high[:, bands])
        unit = (values.astype(np.float32) - low) / (high - low)
        clipped = int(((unit < 0) | (unit > 1)).any(axis=1).sum())
        return np.floor(np.clip(unit, 0.0, 1.0) * 255 + 0.5).astype(np.uint8), clipped  # (N, 3, H, W)


class Tiles:
    """A finished dataset of tiles; a row is the number of an accepted tile.

    Opening checks the sizes of shards, which is cheap for any number of tiles. Shards are mapped on first access. A
    file listed in the manifest is verified when it is first read.

    Attributes:
        SPLITS: Names of splits; files store the index of a split.
        NUM_VIEWS: Orientations of a tile: itself and its mirror image, with quarter turns of both.
        info: Content of `dataset.json`.
        count: Number of accepted tiles (N).
        stretch: Fixed maps of the dataset.

    Raises:
        UserError: A file is missing, truncated, or contradicts `dataset.json`.
    """

    SPLITS = SPLITS
    NUM_VIEWS = NUM_VIEWS

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = _read_info(folder)
        counts = [shard["count"] for shard in self.info["shards"]]
        self._shards: dict[int, npt.NDArray[Any]] = {}
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.count = int(self._starts[-1])
        self.stretch = BandScaling(self.info)
        self._shape = (len(self.info["bands"]), self.info["size"], self.info["size"])
        each = int(np.prod(self._shape)) * np.dtype(self.info["dtype"]).itemsize
        for shard in self.info["shards"]:
            check_length(folder / shard["file"], shard["count"] * each)

    def accepted(self, *names: str) -> dict[str, list[Any]]:
        """Return columns of `tiles.parquet` for accepted tiles; UserError if it is unreadable or inconsistent."""
        table = self.table("status", *names)
        mask = [status == "accepted" for status in table["status"]]
        if sum(mask) != self.count:
            raise _contradiction(self.folder / TABLE_FILE, got=f"{sum(mask)} accepted tiles", expected=self.count)
        return {name: list(compress(table[name], mask)) for name in names}

    def table(self, *names: str, most: int | None = None) -> dict[str, list[Any]]:
        """Return columns of `tiles.parquet`, sampled evenly above `most` rows; UserError if it is unreadable."""
        try:
            return read_columns(Manifest.verified(self.folder / TABLE_FILE), *names, most=most)
        except OSError as error:
            raise user_error(
                f"{self.folder / TABLE_FILE} cannot be read", got=error, expected="a parquet table", fix=FIX
            ) from error

    @staticmethod
    def bounds(cell: str) -> tuple[float, float, float, float] | None:
        """Return west, south, east and north of a named cell in degrees; None for cells not in meters."""
        match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)m/(-?[0-9]+)/([0-9]+)", cell)
        return match and EarthGrid(side_m=float(match[1])).bounds(int(match[2]), int(match[3]))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column file of the accepted tiles, mapped: `split`, `label`; `conditions` and `mask` if available.

        `mask` has the clear pixels of a tile in row order, as packed bits.
        """
        return np.asarray(open_npy(Manifest.verified(self.folder / self.info["columns"][name]), count=self.count))

    def clear(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return the clear pixels (n, H, W) of tiles; all pixels of tiles without masks."""
        side = self.info["size"]
        if "mask" not in self.info.get("columns", ()):
            return np.ones((len(rows), side, side), np.bool_)
        bits = np.unpackbits(self.column("mask")[rows], axis=1, count=side * side)
        return bits.reshape(-1, side, side).astype(np.bool_)

    def conditions(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the conditions of a network for the accepted tiles, (N, k) by name; empty if the tiles have none."""
        has_any = "conditions" in self.info.get("columns", ())
        return network_inputs(self.info["conditions"], self.column("conditions")) if has_any else {}

    def conditions_of(self, values: Mapping[str, Sequence[float]]) -> dict[str, npt.NDArray[np.float32]]:
        """Return such conditions of one image (1, k) from values in the units of the table; see `inputs_of_values`."""
        return inputs_of_values(self.info["conditions"], values)

    @staticmethod
    def conditions_at(
        info: dict[str, Any], scene: Mapping[str, Any], *, row: float, column: float
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return the conditions (1, k) of a network at a pixel of any scene, without clouds, for tiles with this `info`.

        `scene` has the columns of `Scenes`. Conditions of plugins, and values that the scene lacks, are NaN.
        """
        from dithc.data.tiles.conditions import Conditions  # imports rasterio

        columns = {name: [value] for name, value in scene.items()}
        found = Conditions(columns, size=0, added=(), names=()).compute([0], np.array([row]), np.array([column]))
        known = {"gsd_m": columns.get("gsd_m", [None])} | found | {CLOUD["column"]: [0.0]}
        return single_inputs(info["conditions"], known)

    @cached_property
    def labels(self) -> npt.NDArray[np.int32]:
        return self.column("label")

    @cached_property
    def _splits(self) -> npt.NDArray[np.uint8]:
        return self.column("split")

    def rows(self, split: Literal["train", "val", "test", "all"]) -> Rows:
        """Return the numbers of the accepted tiles of a split, ascending."""
        if split == "all":
            return np.arange(self.count, dtype=np.int64)
        return np.flatnonzero(self._splits == SPLITS.index(split)).astype(np.int64)

    def drawn(self, split: Literal["train", "val", "test", "all"], count: int, *, seed: int) -> Rows:
        """Draw `count` tiles of a split without replacement by the seed, in ascending order."""
        return np.sort(np.random.default_rng(seed).permutation(self.rows(split))[:count])

    def stored(self, rows: Rows) -> npt.NDArray[Any]:
        """Return tiles as stored (n, C, H, W), in the order of `rows`."""
        rows = np.asarray(rows, dtype=np.int64)
        tiles = np.empty((len(rows), *self._shape), dtype=self.info["dtype"])
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shards):
            selected = shards == number
            tiles[selected] = self._shard(int(number))[rows[selected] - self._starts[number]]
        return tiles  # (n, C, H, W)

    def _shard(self, number: int) -> npt.NDArray[Any]:
        entry = self.info["shards"][number]
        path = Manifest.verified(self.folder / entry["file"])
        if number not in self._shards:
            shard = open_npy(path, count=entry["count"])
            if shard.shape[1:] != self._shape or shard.dtype != self.info["dtype"]:
                expected = f"{self.info['dtype']} {self._shape}"
                raise _contradiction(path, got=f"{shard.dtype} {shard.shape[1:]}", expected=expected)
            self._shards[number] = shard
        return self._shards[number]

    def scaled(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return tiles as codec input, float32 (n, C, H, W) in [-1, 1]."""
        return self.stretch.scaled(self.stored(rows))

    def rgb(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """Return tiles as displayed and as used for features: uint8 (n, 3, H, W)."""
        return self.stretch.display(self.stretch.physical(self.stored(rows)))


def _contradiction(path: Path, *, got: object, expected: object) -> UserError:
    return user_error(f"{path} contradicts {INFO_FILE}", got=got, expected=expected, fix=FIX)


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / INFO_FILE
    try:
        info: dict[str, Any] = parse_json(Manifest.verified(path).read_text())
        version = info["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise user_error(
            f"{path} cannot be read",
            got=repr(error),
            expected="the output of `dithc tiles`",
            fix="run `dithc tiles` first",
        ) from error
    if version != SCHEMA_VERSION:
        raise user_error(f"{path} is from another version of dithc", got=version, expected=SCHEMA_VERSION, fix=FIX)
    return info
