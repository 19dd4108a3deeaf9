"""The figure of a dataset of tiles: a map by split, ranges of each band by split, and examples of each outcome with masks.

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
from dithc.report.figures.canvas import panels_over_images
from dithc.report.formatting import RANGES, range_rows

MAP_INCHES, RANGES_INCHES, LINE_INCHES, IMAGE_INCHES, TITLE_INCHES = 4.3, 2.6, 0.17, 1.22, 0.8
MAX_POINTS = 5000  # tiles per split on the map, sampled evenly
DEGREE_KM = 111.2
SMALL = 7.5  # type size
LABEL: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8.5}  # of a row of images
# Name, color and opacity of the pixels of a mask.
MASKS = {
    products.Mask.CLOUD: ("cloud", theme.PALETTE[1], 0.5),
    products.Mask.INVALID: ("no data", theme.PALETTE[3], 0.85),
}
EXAMPLES = 8  # displayed tiles of each outcome
MAX_ROWS = 200_000  # of the table; a longer table is sampled evenly
COLUMNS = ("status", "reason", "split", "scene_id", "y", "x", "shard", "row", "cell", "lon", "lat")
REJECTED = "rejected"
Bounds = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class TileOutcome:
    """An outcome of tiles (split or rejection), their count, and images (S, S, 3) with masks (S, S)."""

    name: str
    count: int
    accepted: bool
    pictures: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]]


@dataclass(frozen=True, kw_only=True)
class TileSet:
    """Content of the figure of a tile set.

    Attributes:
        locations: longitude and latitude (N, 2) by split, and by `REJECTED`; empty without georeference.
    """

    title: str
    outcomes: list[TileOutcome]
    locations: dict[str, npt.NDArray[np.float64]]
    side_m: float  # ground size of a tile; 0 without georeference
    cells: list[tuple[Bounds, str]]  # bounds in degrees and split of cells in meters
    units: str
    ranges: dict[str, list[dict[str, Any]]]  # ranges by split, as in `dataset.json`


def read_tiles(folder: Path, *, title: str, scenes: Path | None) -> TileSet:
    """Read a folder of the stage `tiles`; rejected tiles require the folder of scenes."""
    tiles = Tiles(folder)
    source = None if scenes is None else products.Scenes(scenes)
    table = tiles.table(*COLUMNS, most=MAX_ROWS)
    outcome_names = [
        split if status == "accepted" else reason
        for status, split, reason in zip(table["status"], table["split"], table["reason"], strict=True)
    ]
    counts = tiles.info["counts"]
    outcomes = []
    for name, count in (counts["splits"] | counts["rejected"]).items():
        rows = [i for i, outcome in enumerate(outcome_names) if outcome == name]
        examples = [rows[i] for i in np.linspace(0, len(rows) - 1, min(EXAMPLES, len(rows))).round().astype(int)]
        accepted = name in tiles.SPLITS
        images = [_render(tiles, source, {key: table[key][i] for key in table}) for i in examples]
        if count:
            outcomes.append(
                TileOutcome(name=name, count=count, accepted=accepted, pictures=[image for image in images if image])
            )
    splits = dict.fromkeys(zip(table["cell"], table["split"], table["status"], strict=True))
    cells = [(tiles.bounds(cell), split) for cell, split, status in splits if cell and status == "accepted"]
    return TileSet(
        title=title,
        outcomes=outcomes,
        locations=_locations(table, [outcome if outcome in tiles.SPLITS else REJECTED for outcome in outcome_names]),
        side_m=tiles.info["size"] * (tiles.info["gsd_m"] or 0.0),
        cells=[(bounds, split) for bounds, split in cells if bounds is not None],
        units=tiles.info.get("units", ""),
        ranges=tiles.info.get("ranges", {}),
    )


def _locations(table: dict[str, list[Any]], kinds: list[str]) -> dict[str, npt.NDArray[np.float64]]:
    if "lon" not in table:
        return {}
    points = np.array([table["lon"], table["lat"]], np.float64).T  # (N, 2), NaN for None
    mask, kind = np.isfinite(points).all(axis=1), np.array(kinds)
    return {name: points[mask & (kind == name)] for name in dict.fromkeys(kinds) if (mask & (kind == name)).any()}


def _render(
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
    rgb = tiles.stretch.display(tiles.stretch.physical(pixels[np.newaxis]))[0].transpose(1, 2, 0)
    return rgb, mask


def tiles_figure(tiles: TileSet) -> Any:
    """Return the figure: map, ranges and images of each outcome if available; call it inside `styled`."""
    outcomes = [outcome for outcome in tiles.outcomes if outcome.pictures]
    lines = 1 + sum(map(len, tiles.ranges.values()))
    tops = {"map": MAP_INCHES} if tiles.locations else {}
    tops |= {"ranges": RANGES_INCHES, "table": LINE_INCHES * (lines + 2)} if tiles.ranges else {}
    figure, above, rows = panels_over_images(
        tops=list(tops.values()) or [TITLE_INCHES if tiles.title else 0.1],
        rows=max(len(outcomes), 1),
        columns=EXAMPLES + 1,
        height=IMAGE_INCHES,
    )
    panels = dict(zip(tops, above, strict=False))
    shades = (*(theme.PALETTE[index] for index in (0, 4, 2)), theme.MUTED)
    colors = dict(zip((*Tiles.SPLITS, REJECTED), shades, strict=True))
    if not tops:
        above[0].set_axis_off()
    if "map" in panels:
        _draw_map(panels["map"], tiles, colors)
    if "ranges" in panels:
        _draw_ranges(panels["ranges"], tiles, colors)
        _draw_table(panels["table"], tiles)
    above[0].set_title("\n".join(filter(None, (tiles.title, above[0].get_title(loc="left")))))
    for panel in (panel for row in rows for panel in row):
        panel.set_axis_off()
    for row, outcome in zip(rows, outcomes, strict=False):
        _draw_outcome(row, outcome, colors[outcome.name] if outcome.accepted else theme.INK)
    return figure


def _draw_outcome(panels: list[Any], outcome: TileOutcome, color: str) -> None:
    """Write the outcome and the colors of the masks, then draw images with masks."""
    lines = [outcome.name.replace("_", "\n"), f"{outcome.count:,}"]
    panels[0].text(1.0, 1.0, "\n".join(lines if outcome.accepted else ["rejected:", *lines]), color=color, **LABEL)
    mask_values = []
    for panel, (image, mask) in zip(panels[1:], outcome.pictures, strict=False):
        panel.imshow(image, interpolation="nearest")
        if mask is not None and (mask != products.Mask.VALID).any():
            panel.imshow(_overlay(mask), interpolation="nearest")
            mask_values += np.unique(mask).tolist()
    for index, (name, shade, _) in enumerate(style for value, style in MASKS.items() if value in mask_values):
        panels[0].text(1.0, 0.14 * index, f"■ {name}", color=shade, **(LABEL | {"va": "bottom", "fontsize": SMALL}))


def _overlay(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return colors (S, S, 4): transparent where valid, half opaque for clouds, nearly opaque without data."""
    layer = np.zeros((*mask.shape, 4))
    for value, (_, color, opacity) in MASKS.items():
        layer[mask == value] = to_rgba(color, opacity)
    return layer


def _draw_map(panel: Any, tiles: TileSet, colors: dict[str, str]) -> None:
    """Draw tiles colored by split on longitude and latitude, cells in meters, and a scale bar."""
    all_points = np.concatenate(list(tiles.locations.values()))
    aspect = float(np.cos(np.radians(all_points[:, 1].mean())))  # length of a degree of longitude over latitude
    height = tiles.side_m / 1000 / DEGREE_KM
    width = height / aspect
    for (west, south, east, north), split in tiles.cells[:MAX_POINTS]:
        box = [west, east, east, west], [south, south, north, north]
        panel.fill(*box, linewidth=0, color=colors[split], alpha=0.25)
    for kind in (REJECTED, *Tiles.SPLITS):
        if kind in tiles.locations:
            points = tiles.locations[kind]
            sample = points[np.linspace(0, len(points) - 1, min(MAX_POINTS, len(points))).round().astype(int)]
            panel.bar(
                sample[:, 0],
                0.9 * height,
                0.9 * width,
                bottom=sample[:, 1] - 0.45 * height,
                color=colors[kind] if kind != REJECTED else "none",
                edgecolor=colors[kind],
                linewidth=0.5,
                label=f"{kind} ({len(points):,})",
            )
    (west, south), (east, north) = all_points.min(axis=0), all_points.max(axis=0)
    margin = max(0.06 * (east - west), 0.06 * (north - south), height)
    panel.set_xlim(west - margin / aspect, east + margin / aspect)
    panel.set_ylim(south - 2 * margin, north + margin)
    panel.set_aspect(1 / aspect)
    panel.ticklabel_format(useOffset=False)
    panel.set_xlabel("longitude (degrees)")
    panel.set_ylabel("latitude (degrees)")
    span_km = (east - west + 2 * margin / aspect) * DEGREE_KM * aspect
    step = 10.0 ** np.floor(np.log10(span_km / 4))
    length = max(step * factor for factor in (1, 2, 5) if step * factor <= span_km / 4)
    x, y = west, south - 1.35 * margin
    panel.plot([x, x + length / DEGREE_KM / aspect], [y, y], color=theme.INK, linewidth=2.5, solid_capstyle="butt")
    panel.annotate(f"{length:g} km", (x, y), xytext=(0, 4), textcoords="offset points", fontsize=SMALL)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK)
    panel.set_title("Tiles by split" + (", over their cells" if tiles.cells else ""))


def _draw_ranges(panel: Any, tiles: TileSet, colors: dict[str, str]) -> None:
    """Draw by band and split: full range thin, percentiles 1 to 99 thick, median as a mark."""
    count = len(tiles.ranges)
    for number, (split, bands) in enumerate(tiles.ranges.items()):
        for index, band in enumerate(bands):
            x = index + (number - (count - 1) / 2) * 0.22
            if "median" not in band:
                continue
            panel.plot([x, x], [band["min"], band["max"]], color=colors[split], linewidth=0.8)
            panel.plot(
                [x, x], [band["p1"], band["p99"]], color=colors[split], linewidth=4, solid_capstyle="butt", alpha=0.55
            )
            label = split if index == 0 else None
            panel.plot(
                [x], [band["median"]], color=colors[split], marker="_", markersize=8, markeredgewidth=2, label=label
            )
    measured = [band for bands in tiles.ranges.values() for band in bands if "median" in band]
    low, high = min(band["p1"] for band in measured), max(band["p99"] for band in measured)
    panel.set_ylim(max(min(band["min"] for band in measured), low - 0.4 * (high - low)), high + 0.25 * (high - low))
    names = [band["band"] for band in next(iter(tiles.ranges.values()))]
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.6, len(names) - 0.4)
    panel.set_ylabel(tiles.units)
    panel.grid(visible=False, axis="x")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    panel.set_title("Values: median, percentiles 1 to 99 (thick), minimum to maximum (thin, cut at the frame)")


def _draw_table(panel: Any, tiles: TileSet) -> None:
    panel.set_axis_off()
    rows = range_rows(tiles.ranges)
    table = panel.table(cellText=rows, colLabels=RANGES, loc="center", edges="open")
    table.auto_set_font_size(value=False)
    table.set_fontsize(SMALL)
    for (row, column), cell in table.get_celld().items():
        cell.set_height(1.0 / (len(rows) + 1))
        cell.set_text_props(ha="left" if column < 2 else "right", color=theme.MUTED if row == 0 else theme.INK)
