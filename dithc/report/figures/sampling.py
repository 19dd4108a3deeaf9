"""One image on one rank and on several: speedups, and below them the images with their differences."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

from dithc.report.engine import sampling_rows
from dithc.report.facts import Facts
from dithc.report.figures import theme
from dithc.report.figures.canvas import WIDTH_INCHES, as_png, canvas, nothing, over_pictures, styled

Speedups = Sequence[tuple[str, dict[str, tuple[float, float]]]]
Pictures = Sequence[sampling_rows.Picture]
HEIGHT_OF_ALL = 0.8  # share of the space between two cells for their dots
ONE_RANK = 1.0
ROW_INCHES, AROUND_INCHES, LEGEND_INCHES = 0.5, 0.9, 1.3
MARKERS = ("o", "D", "s")
LETTERS = 130  # letters of a title over all columns
HARDLY = 1e-12  # smallest upper end of a color scale


def draw_sampling(facts: Facts) -> bytes:
    """Draw the sampling benchmark of the report."""
    found = facts.benches.get("sampling")
    if not found:
        return nothing("sampling on several ranks: not run")
    ranks = found["ranks"]
    title = f"{found['settings']['model'].removeprefix('DiT-')}, {ranks['ranks']} ranks of {ranks['cpus']} thread(s)"
    return draw_ways(
        sampling_rows.speedups(found), sampling_rows.pictures(found), title=title, ranks=ranks["ranks"],
        decoded=sampling_rows.decoded_pictures(found),
    )  # fmt: skip


def draw_ways(
    cells: Speedups,
    pictures: Pictures,
    *,
    title: str,
    ranks: int,
    decoded: Sequence[tuple[str, Pictures]] = (),
) -> bytes:
    """Draw speedups as dots, a color per variant; below, images over their differences from the first, then decoders."""
    ways = list(dict.fromkeys(way for _, found in cells for way in found))
    of_decoders = [(one, column == 0, f"{name}, ") for name, found in decoded for column, one in enumerate(found)]
    groups = [[(one, column == 0, "") for column, one in enumerate(pictures)], of_decoders]
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
        _dots(panel, cells, ways, ranks=ranks)
        panel.set_title(f"One image on several ranks: {title}")
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
    panel.set_yticks(range(len(cells)), [title for title, _ in cells])
    panel.tick_params(axis="y", labelcolor=theme.INK)
    panel.set_ylim(len(cells) - 0.45, -0.55)
    panel.grid(visible=False, axis="y")
    for border in range(1, len(cells)):
        panel.axhline(border - 0.5, color=theme.GRID, linewidth=0.8)
    panel.set_xlabel("speedup over one rank with the cores of one rank; dashed: one rank, and all ranks without loss")
    panel.legend(
        loc="upper left", bbox_to_anchor=(1.005, 1), labelcolor=theme.INK, fontsize=8, borderaxespad=0, handlelength=1.2
    )


def _difference(place: Any, one: sampling_rows.Picture, *, is_first: bool, what: str) -> None:
    """Draw the difference from the first image as relative brightness; black means equal."""
    if is_first:
        text = f"below the other images:\ndifference of {what}\nfrom this image,\nover the largest number"
        place.text(0.5, 0.5, text, ha="center", va="center", fontsize=7.5, color=theme.MUTED, transform=place.transAxes)
        place.imshow(np.full((*one.pixels.shape[:2], 4), 0.0))  # reserves the space of an image
        return
    values = np.zeros(one.pixels.shape[:2]) if one.difference is None else one.difference
    place.imshow(values, cmap="inferno", vmin=0, vmax=max(float(values.max()), HARDLY), interpolation="nearest")
    said = sampling_rows.EQUAL if one.difference is None else f"at most {values.max():.1e}"
    place.set_title(said, fontsize=7.5, fontweight="normal", color=theme.INK)
