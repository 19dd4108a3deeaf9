"""The figure of `dithc bench sampling`: one image on one rank and on several, with speedups and differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.report.figures import theme
from dithc.report.figures.canvas import WIDTH_INCHES, Figure, canvas, lanes, panels_over_images, placeholder
from dithc.report.records import ReportRecords

Speedups = Sequence[tuple[str, dict[str, tuple[float, float]]]]
HEIGHT_OF_ALL = 0.8  # share of the space between two cells for their dots
ONE_RANK = 1.0
ROW_INCHES, AROUND_INCHES, LEGEND_INCHES = 0.5, 0.9, 1.3
MARKERS = ("o", "D", "s")
TITLE_LETTERS = 130  # letters of a title over all columns
MIN_DIFFERENCE = 1e-12  # smallest upper end of a color scale
EQUAL, BASE = "equal to the bit", "one-rank"


@dataclass(frozen=True, kw_only=True)
class SampleImage:
    """An image (h, w, 3), and the relative difference (h, w) of its latent from one rank; None if bitwise equal."""

    label: str
    pixels: NDArray[np.uint8]
    difference: NDArray[np.float64] | None


def draw_sampling(records: ReportRecords) -> Figure:
    result = records.benches.get("sampling")
    return draw_variants(result) if result else placeholder("sampling on several ranks: not run")


def speedups(result: Mapping[str, Any]) -> Speedups:
    """Return title, and speedup over one rank with deviation by variant, of each cell, image and decoder."""
    images = result["images"]
    parts = [(_title(cell), cell["rows"]) for cell in result["cells"]]
    parts += [(f"image of {images['steps']} steps,\n{_title(images)}", images["rows"])] if images else []
    parts += [(f"decoded: {item['size']:,} px, {item['decoder']}", item["rows"]) for item in _decoders(result)]
    cells = []
    for title, rows in parts:
        measured = [row for row in rows if row["status"] == "ok" and row["name"] != BASE]
        if measured:
            cells.append((title, {row["name"]: (row["speedup"]["median"], row["speedup"]["mad"]) for row in measured}))
    return cells


def _title(cell: Mapping[str, Any]) -> str:
    guided = f"guidance {cell['guidance']:g}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def _decoders(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [decoder for decoder in result["decoding"]["decoders"] if decoder["status"] == "ok"]


def sample_images(images: Mapping[str, Any]) -> list[SampleImage]:
    """Return the images of a sampler or decoder, starting with one rank."""
    differences = images["differences"]
    return [
        SampleImage(
            label=name,
            pixels=np.asarray(pixels, np.uint8),
            difference=np.asarray(differences[name]) / images["largest"] if name in differences else None,
        )
        for name, pixels in images["images"].items()
    ]


def draw_variants(result: Mapping[str, Any]) -> Figure:
    """Draw speedups as dots, a color per variant; below, images over their differences from the first, then decoders."""
    cells, ranks = speedups(result), result["ranks"]
    images = sample_images(result["images"]) if result["images"] else []
    decoded = [(image["decoder"], sample_images(image)) for image in _decoders(result)]
    variants = list(dict.fromkeys(variant for _, ratios in cells for variant in ratios))
    of_decoders = [(image, column == 0, f"{name}, ") for name, group in decoded for column, image in enumerate(group)]
    groups = [[(image, column == 0, "") for column, image in enumerate(images)], of_decoders]
    groups = [group for group in groups if group]
    columns = max([len(group) for group in groups], default=1)
    side = WIDTH_INCHES / columns
    top = AROUND_INCHES + max(ROW_INCHES * len(cells), LEGEND_INCHES)
    if groups:
        figure, (panel,), image_rows = panels_over_images(
            tops=[top], rows=2 * len(groups), columns=columns, height=side + 0.35
        )
    else:
        figure, (panel,) = canvas(1, columns=1, height=top)
        image_rows = []
    _draw_speedups(panel, cells, variants, ranks=ranks["ranks"])
    model = result["settings"]["model"].removeprefix("DiT-")
    panel.set_title(f"One image on several ranks: {model}, {ranks['ranks']} ranks of {ranks['cpus']} thread(s)")
    for row in image_rows:
        for axis in row:
            axis.set_axis_off()
    for index, group in enumerate(groups):
        for column, (image, is_first, prefix) in enumerate(group):
            upper, lower = image_rows[2 * index][column], image_rows[2 * index + 1][column]
            upper.imshow(image.pixels, interpolation="nearest")
            upper.set_title(fill(f"{prefix}{image.label}", TITLE_LETTERS // columns), fontsize=8)
            _draw_difference(
                lower, image, is_first=is_first, subject="the image" if prefix else "the latent before decoding"
            )
    return figure


def _draw_speedups(panel: Any, cells: Speedups, variants: Sequence[str], *, ranks: int) -> None:
    """Draw a line per cell with stacked dots per variant."""
    height = HEIGHT_OF_ALL / max(len(variants), 1)
    for index, variant in enumerate(variants):
        dots = [(cell, *ratios[variant]) for cell, (_, ratios) in enumerate(cells) if variant in ratios]
        heights = [cell + (index - (len(variants) - 1) / 2) * height for cell, _, _ in dots]
        panel.errorbar(
            [value for _, value, _ in dots], heights, xerr=[deviation for *_, deviation in dots], linestyle="none",
            marker=MARKERS[index // len(theme.PALETTE) % len(MARKERS)], markersize=5.5, label=variant,
            color=theme.PALETTE[index % len(theme.PALETTE)],
        )  # fmt: skip
    for line in (ONE_RANK, float(ranks)):
        panel.axvline(line, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    largest = max([sum(pair) for _, ratios in cells for pair in ratios.values()] + [float(ranks)])
    panel.set_xlim(0, largest * 1.05)
    lanes(panel, [title for title, _ in cells], margin=0.55)
    for border in range(1, len(cells)):
        panel.axhline(border - 0.5, color=theme.GRID, linewidth=0.8)
    panel.set_xlabel("speedup over one rank with the cores of one rank; dashed: one rank, and all ranks without loss")
    panel.legend(
        loc="upper left", bbox_to_anchor=(1.005, 1), labelcolor=theme.INK, fontsize=8, borderaxespad=0, handlelength=1.2
    )


def _draw_difference(panel: Any, image: SampleImage, *, is_first: bool, subject: str) -> None:
    """Draw the difference from the first image as relative brightness; black means equal."""
    if is_first:
        text = f"below the other images:\ndifference of {subject}\nfrom this image,\nover the largest number"
        panel.text(0.5, 0.5, text, ha="center", va="center", fontsize=7.5, color=theme.MUTED, transform=panel.transAxes)
        panel.imshow(np.full((*image.pixels.shape[:2], 4), 0.0))  # reserves the space of an image
        return
    values = np.zeros(image.pixels.shape[:2]) if image.difference is None else image.difference
    panel.imshow(values, cmap="inferno", vmin=0, vmax=max(float(values.max()), MIN_DIFFERENCE), interpolation="nearest")
    title = EQUAL if image.difference is None else f"at most {values.max():.1e}"
    panel.set_title(title, fontsize=7.5, fontweight="normal", color=theme.INK)
