"""The figure of a dataset of tiles: a map by split, ranges of each band by split, and examples of each fate with masks.

Legend: N tiles, S side of a tile.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgba

from dithc.data import Tiles, products
from dithc.report.figures import theme
from dithc.report.figures.canvas import over_pictures
from dithc.report.formatting import RANGES, range_rows

MAP_INCHES, RANGES_INCHES, LINE_INCHES, PICTURE_INCHES, TITLE_INCHES = 4.3, 2.6, 0.17, 1.22, 0.8
MOST_PLACES = 5000
"""Largest number of tiles per split on the map, sampled evenly."""
DEGREE_KM = 111.2
SMALL = 7.5  # type size
BESIDE: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8.5}  # of a row of images
# Name, color and opacity of the pixels of a mask.
MASKS = {
    products.Mask.CLOUD: ("cloud", theme.PALETTE[1], 0.5),
    products.Mask.INVALID: ("no data", theme.PALETTE[3], 0.85),
}
EXAMPLES = 8
"""Displayed tiles of each fate."""
MOST_ROWS = 200_000
"""Largest number of table rows; a longer table is sampled evenly."""
COLUMNS = ("status", "reason", "split", "scene_id", "y", "x", "shard", "row", "cell", "lon", "lat")
REJECTED = "rejected"
Bounds = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class TileOutcome:
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
    fates: list[TileOutcome]
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
            fates.append(
                TileOutcome(name=name, count=count, accepted=accepted, pictures=[one for one in pictures if one])
            )
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
    shown = tiles.stretch.display(tiles.stretch.physical(pixels[np.newaxis]))[0].transpose(1, 2, 0)
    return shown, mask


def tiles_figure(tiles: TileSet) -> Any:
    """Return the figure: map, ranges and images of each fate if available; call it inside `styled`."""
    fates = [fate for fate in tiles.fates if fate.pictures]
    lines = 1 + sum(map(len, tiles.ranges.values()))
    tops = {"map": MAP_INCHES} if tiles.places else {}
    tops |= {"ranges": RANGES_INCHES, "table": LINE_INCHES * (lines + 2)} if tiles.ranges else {}
    figure, above, rows = over_pictures(
        tops=list(tops.values()) or [TITLE_INCHES if tiles.title else 0.1],
        rows=max(len(fates), 1),
        columns=EXAMPLES + 1,
        height=PICTURE_INCHES,
    )
    panels = dict(zip(tops, above, strict=False))
    shades = (*(theme.PALETTE[index] for index in (0, 4, 2)), theme.MUTED)
    colours = dict(zip((*Tiles.SPLITS, REJECTED), shades, strict=True))
    if not tops:
        above[0].set_axis_off()
    if "map" in panels:
        _map(panels["map"], tiles, colours)
    if "ranges" in panels:
        _ranges(panels["ranges"], tiles, colours)
        _table(panels["table"], tiles)
    above[0].set_title("\n".join(filter(None, (tiles.title, above[0].get_title(loc="left")))))
    for panel in (panel for row in rows for panel in row):
        panel.set_axis_off()
    for row, fate in zip(rows, fates, strict=False):
        _row(row, fate, colours[fate.name] if fate.accepted else theme.INK)
    return figure


def _row(panels: list[Any], fate: TileOutcome, colour: str) -> None:
    """Write the fate and the colors of the masks, then draw images with masks."""
    lines = [fate.name.replace("_", "\n"), f"{fate.count:,}"]
    panels[0].text(1.0, 1.0, "\n".join(lines if fate.accepted else ["rejected:", *lines]), color=colour, **BESIDE)
    said = []
    for panel, (picture, mask) in zip(panels[1:], fate.pictures, strict=False):
        panel.imshow(picture, interpolation="nearest")
        if mask is not None and (mask != products.Mask.VALID).any():
            panel.imshow(_overlay(mask), interpolation="nearest")
            said += np.unique(mask).tolist()
    for place, (name, shade, _) in enumerate(look for value, look in MASKS.items() if value in said):
        panels[0].text(1.0, 0.14 * place, f"■ {name}", color=shade, **(BESIDE | {"va": "bottom", "fontsize": SMALL}))


def _overlay(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return colors (S, S, 4): transparent where valid, half opaque for clouds, nearly opaque without data."""
    layer = np.zeros((*mask.shape, 4))
    for value, (_, colour, opacity) in MASKS.items():
        layer[mask == value] = to_rgba(colour, opacity)
    return layer


def _map(panel: Any, tiles: TileSet, colours: dict[str, str]) -> None:
    """Draw tiles colored by split on longitude and latitude, cells in meters, and a scale bar."""
    everything = np.concatenate(list(tiles.places.values()))
    narrow = float(np.cos(np.radians(everything[:, 1].mean())))  # length of a degree of longitude over latitude
    high = tiles.side_m / 1000 / DEGREE_KM
    wide = high / narrow
    for (west, south, east, north), split in tiles.cells[:MOST_PLACES]:
        box = [west, east, east, west], [south, south, north, north]
        panel.fill(*box, linewidth=0, color=colours[split], alpha=0.25)
    for kind in (REJECTED, *Tiles.SPLITS):
        if kind in tiles.places:
            points = tiles.places[kind]
            shown = points[np.linspace(0, len(points) - 1, min(MOST_PLACES, len(points))).round().astype(int)]
            panel.bar(
                shown[:, 0],
                0.9 * high,
                0.9 * wide,
                bottom=shown[:, 1] - 0.45 * high,
                color=colours[kind] if kind != REJECTED else "none",
                edgecolor=colours[kind],
                linewidth=0.5,
                label=f"{kind} ({len(points):,})",
            )
    (west, south), (east, north) = everything.min(axis=0), everything.max(axis=0)
    margin = max(0.06 * (east - west), 0.06 * (north - south), high)
    panel.set_xlim(west - margin / narrow, east + margin / narrow)
    panel.set_ylim(south - 2 * margin, north + margin)
    panel.set_aspect(1 / narrow)
    panel.ticklabel_format(useOffset=False)
    panel.set_xlabel("longitude (degrees)")
    panel.set_ylabel("latitude (degrees)")
    span_km = (east - west + 2 * margin / narrow) * DEGREE_KM * narrow
    step = 10.0 ** np.floor(np.log10(span_km / 4))
    length = max(step * factor for factor in (1, 2, 5) if step * factor <= span_km / 4)
    left, y = west, south - 1.35 * margin
    panel.plot(
        [left, left + length / DEGREE_KM / narrow], [y, y], color=theme.INK, linewidth=2.5, solid_capstyle="butt"
    )
    panel.annotate(f"{length:g} km", (left, y), xytext=(0, 4), textcoords="offset points", fontsize=SMALL)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK)
    panel.set_title("Tiles by split" + (", over their cells" if tiles.cells else ""))


def _ranges(panel: Any, tiles: TileSet, colours: dict[str, str]) -> None:
    """Draw by band and split: full range thin, percentiles 1 to 99 thick, median as a mark."""
    count = len(tiles.ranges)
    for number, (split, bands) in enumerate(tiles.ranges.items()):
        for place, band in enumerate(bands):
            x = place + (number - (count - 1) / 2) * 0.22
            if "median" not in band:
                continue
            panel.plot([x, x], [band["min"], band["max"]], color=colours[split], linewidth=0.8)
            panel.plot(
                [x, x], [band["p1"], band["p99"]], color=colours[split], linewidth=4, solid_capstyle="butt", alpha=0.55
            )
            label = split if place == 0 else None
            panel.plot(
                [x], [band["median"]], color=colours[split], marker="_", markersize=8, markeredgewidth=2, label=label
            )
    every = [band for bands in tiles.ranges.values() for band in bands if "median" in band]
    low, high = min(band["p1"] for band in every), max(band["p99"] for band in every)
    panel.set_ylim(max(min(band["min"] for band in every), low - 0.4 * (high - low)), high + 0.25 * (high - low))
    names = [band["band"] for band in next(iter(tiles.ranges.values()))]
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.6, len(names) - 0.4)
    panel.set_ylabel(tiles.units)
    panel.grid(visible=False, axis="x")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    panel.set_title("Values: median, percentiles 1 to 99 (thick), minimum to maximum (thin, cut at the frame)")


def _table(panel: Any, tiles: TileSet) -> None:
    panel.set_axis_off()
    rows = range_rows(tiles.ranges)
    table = panel.table(cellText=rows, colLabels=RANGES, loc="center", edges="open")
    table.auto_set_font_size(value=False)
    table.set_fontsize(SMALL)
    for (row, column), cell in table.get_celld().items():
        cell.set_height(1.0 / (len(rows) + 1))
        cell.set_text_props(ha="left" if column < 2 else "right", color=theme.MUTED if row == 0 else theme.INK)
