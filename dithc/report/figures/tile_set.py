"""Content of the figure of a tile set: examples by fate with masks, locations by split, ranges by band.

Legend: N tiles, S side of a tile.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.data import Tiles, products

EXAMPLES = 8
"""Displayed tiles of each fate."""
MOST_ROWS = 200_000
"""Largest number of table rows; a longer table is sampled evenly."""
COLUMNS = ("status", "reason", "split", "scene_id", "y", "x", "shard", "row", "cell", "lon", "lat")
REJECTED = "rejected"
Bounds = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A fate of tiles (split or rejection), their count, and images (S, S, 3) with masks (S, S)."""

    name: str
    count: int
    accepted: bool
    pictures: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]]


@dataclass(frozen=True, kw_only=True)
class TileSet:
    """Content of the figure of a tile set.

    Attributes:
        places: longitude and latitude (N, 2) by split, and by `REJECTED`; empty without georeference.
    """

    title: str
    fates: list[Fate]
    places: dict[str, npt.NDArray[np.float64]]
    side_m: float  # ground size of a tile; 0 without georeference
    cells: list[tuple[Bounds, str]]  # bounds in degrees and split of cells in meters
    units: str
    ranges: dict[str, list[dict[str, Any]]]  # ranges by split, as in `dataset.json`


def read_tiles(folder: Path, *, title: str, scenes: Path | None) -> TileSet:
    """Read a folder of the stage `tiles`; rejected tiles require the folder of scenes."""
    tiles = Tiles(folder)
    source = None if scenes is None else products.Scenes(scenes)
    table = tiles.table(*COLUMNS, most=MOST_ROWS)
    fate_of = [
        split if status == "accepted" else reason for status, split, reason in _zip(table, "status", "split", "reason")
    ]
    counts = tiles.info["counts"]
    fates = []
    for name, count in (counts["splits"] | counts["rejected"]).items():
        rows = [i for i, fate in enumerate(fate_of) if fate == name]
        chosen = [rows[i] for i in np.linspace(0, len(rows) - 1, min(EXAMPLES, len(rows))).round().astype(int)]
        accepted = name in tiles.SPLITS
        pictures = [_picture(tiles, source, {key: table[key][i] for key in table}) for i in chosen]
        if count:
            fates.append(Fate(name=name, count=count, accepted=accepted, pictures=[one for one in pictures if one]))
    splits = dict.fromkeys(_zip(table, "cell", "split", "status"))
    cells = [(tiles.bounds(cell), split) for cell, split, status in splits if cell and status == "accepted"]
    return TileSet(
        title=title,
        fates=fates,
        places=_places(table, [fate if fate in tiles.SPLITS else REJECTED for fate in fate_of]),
        side_m=tiles.info["size"] * (tiles.info["gsd_m"] or 0.0),
        cells=[(bounds, split) for bounds, split in cells if bounds is not None],
        units=tiles.info.get("units", ""),
        ranges=tiles.info.get("ranges", {}),
    )


def _zip(table: dict[str, list[Any]], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name] for name in names), strict=True))


def _places(table: dict[str, list[Any]], kinds: list[str]) -> dict[str, npt.NDArray[np.float64]]:
    if "lon" not in table:
        return {}
    points = np.array([table["lon"], table["lat"]], np.float64).T  # (N, 2), NaN for None
    known, kind = np.isfinite(points).all(axis=1), np.array(kinds)
    return {name: points[known & (kind == name)] for name in dict.fromkeys(kinds) if (known & (kind == name)).any()}


def _picture(
    tiles: Tiles, source: products.Scenes | None, row: dict[str, Any]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None] | None:
    """Render a tile, with its mask if scenes exist; None for a rejected tile without scenes."""
    size = tiles.info["size"]
    if source is None:
        if row["status"] != "accepted":
            return None
        number = sum(shard["count"] for shard in tiles.info["shards"][: row["shard"]]) + row["row"]
        return tiles.rgb(np.array([number]))[0].transpose(1, 2, 0), None
    scene, y, x = source.columns["scene_id"].index(row["scene_id"]), row["y"] or 0, row["x"] or 0
    pixels = source.pixels_of(scene)[:, y : y + size, x : x + size]
    mask = np.asarray(source.mask_of(scene)[y : y + size, x : x + size])
    shown = tiles.display(tiles.stretch.physical(pixels[np.newaxis]))[0].transpose(1, 2, 0)
    return shown, mask
