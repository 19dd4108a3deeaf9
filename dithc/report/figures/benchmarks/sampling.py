"""The figure of `dithc bench sampling`: one image on one rank and on several, with speedups and differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.report.figures import theme
from dithc.report.figures.canvas import WIDTH_INCHES, as_png, canvas, lanes, nothing, over_pictures, styled
from dithc.report.records import ReportRecords

Speedups = Sequence[tuple[str, dict[str, tuple[float, float]]]]
HEIGHT_OF_ALL = 0.8  # share of the space between two cells for their dots
ONE_RANK = 1.0
ROW_INCHES, AROUND_INCHES, LEGEND_INCHES = 0.5, 0.9, 1.3
MARKERS = ("o", "D", "s")
LETTERS = 130  # letters of a title over all columns
HARDLY = 1e-12  # smallest upper end of a color scale
EQUAL, BASE = "equal to the bit", "one-rank"


@dataclass(frozen=True, kw_only=True)
class SampleImage:
    """An image (h, w, 3), and the relative difference (h, w) of its latent from one rank; None if bitwise equal."""

    label: str
    pixels: NDArray[np.uint8]
    difference: NDArray[np.float64] | None


def draw_sampling(facts: ReportRecords) -> bytes:
    found = facts.benches.get("sampling")
    return draw_ways(found) if found else nothing("sampling on several ranks: not run")


def speedups(result: Mapping[str, Any]) -> Speedups:
    """Return title, and speedup over one rank with deviation by variant, of each cell, image and decoder."""
    images = result["images"]
    parts = [(_title(cell), cell["rows"]) for cell in result["cells"]]
    parts += [(f"image of {images['steps']} steps,\n{_title(images)}", images["rows"])] if images else []
    parts += [(f"decoded: {one['size']:,} px, {one['decoder']}", one["rows"]) for one in _decoders(result)]
    found = []
    for title, rows in parts:
        measured = [row for row in rows if row["status"] == "ok" and row["name"] != BASE]
        if measured:
            found.append((title, {row["name"]: (row["speedup"]["median"], row["speedup"]["mad"]) for row in measured}))
    return found


def _title(cell: Mapping[str, Any]) -> str:
    guided = f"guidance {cell['guidance']:g}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def _decoders(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in result["decoding"]["decoders"] if one["status"] == "ok"]


def pictures(images: Mapping[str, Any]) -> list[SampleImage]:
    """Return the images of a sampler or decoder, starting with one rank."""
    differences = images["differences"]
    return [
        SampleImage(
            label=name,
            pixels=np.asarray(pixels, np.uint8),
            difference=np.asarray(differences[name]) / images["largest"] if name in differences else None,
        )
        for name, pixels in images["pictures"].items()
    ]


def draw_ways(result: Mapping[str, Any]) -> bytes:
    """Draw speedups as dots, a color per variant; below, images over their differences from the first, then decoders."""
    cells, ranks = speedups(result), result["ranks"]
    images = pictures(result["images"]) if result["images"] else []
    decoded = [(one["decoder"], pictures(one)) for one in _decoders(result)]
    ways = list(dict.fromkeys(way for _, found in cells for way in found))
    of_decoders = [(one, column == 0, f"{name}, ") for name, found in decoded for column, one in enumerate(found)]
    groups = [[(one, column == 0, "") for column, one in enumerate(images)], of_decoders]
    groups = [group for group in groups if group]
    columns = max([len(group) for group in groups], default=1)
    side = WIDTH_INCHES / columns
    top = AROUND_INCHES + max(ROW_INCHES * len(cells), LEGEND_INCHES)
    with styled():
        if groups:
            figure, (panel,), places = over_pictures(
                tops=[top], rows=2 * len(groups), columns=columns, height=side + 0.35
            )
        else:
            figure, (panel,) = canvas(1, columns=1, height=top)
            places = []
        _dots(panel, cells, ways, ranks=ranks["ranks"])
        model = result["settings"]["model"].removeprefix("DiT-")
        panel.set_title(f"One image on several ranks: {model}, {ranks['ranks']} ranks of {ranks['cpus']} thread(s)")
        for row in places:
            for place in row:
                place.set_axis_off()
        for at, group in enumerate(groups):
            for column, (one, is_first, of) in enumerate(group):
                upper, lower = places[2 * at][column], places[2 * at + 1][column]
                upper.imshow(one.pixels, interpolation="nearest")
                upper.set_title(fill(f"{of}{one.label}", LETTERS // columns), fontsize=8)
                _difference(lower, one, is_first=is_first, what="the image" if of else "the latent before decoding")
        return as_png(figure)


def _dots(panel: Any, cells: Speedups, ways: Sequence[str], *, ranks: int) -> None:
    """Draw a line per cell with stacked dots per variant."""
    height = HEIGHT_OF_ALL / max(len(ways), 1)
    for place, way in enumerate(ways):
        shown = [(at, *found[way]) for at, (_, found) in enumerate(cells) if way in found]
        heights = [at + (place - (len(ways) - 1) / 2) * height for at, _, _ in shown]
        panel.errorbar(
            [value for _, value, _ in shown], heights, xerr=[deviation for *_, deviation in shown], linestyle="none",
            marker=MARKERS[place // len(theme.PALETTE) % len(MARKERS)], markersize=5.5, label=way,
            color=theme.PALETTE[place % len(theme.PALETTE)],
        )  # fmt: skip
    for line in (ONE_RANK, float(ranks)):
        panel.axvline(line, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    most = max([sum(pair) for _, found in cells for pair in found.values()] + [float(ranks)])
    panel.set_xlim(0, most * 1.05)
    lanes(panel, [title for title, _ in cells], margin=0.55)
    for border in range(1, len(cells)):
        panel.axhline(border - 0.5, color=theme.GRID, linewidth=0.8)
    panel.set_xlabel("speedup over one rank with the cores of one rank; dashed: one rank, and all ranks without loss")
    panel.legend(
        loc="upper left", bbox_to_anchor=(1.005, 1), labelcolor=theme.INK, fontsize=8, borderaxespad=0, handlelength=1.2
    )


def _difference(place: Any, one: SampleImage, *, is_first: bool, what: str) -> None:
    """Draw the difference from the first image as relative brightness; black means equal."""
    if is_first:
        text = f"below the other images:\ndifference of {what}\nfrom this image,\nover the largest number"
        place.text(0.5, 0.5, text, ha="center", va="center", fontsize=7.5, color=theme.MUTED, transform=place.transAxes)
        place.imshow(np.full((*one.pixels.shape[:2], 4), 0.0))  # reserves the space of an image
        return
    values = np.zeros(one.pixels.shape[:2]) if one.difference is None else one.difference
    place.imshow(values, cmap="inferno", vmin=0, vmax=max(float(values.max()), HARDLY), interpolation="nearest")
    said = EQUAL if one.difference is None else f"at most {values.max():.1e}"
    place.set_title(said, fontsize=7.5, fontweight="normal", color=theme.INK)
