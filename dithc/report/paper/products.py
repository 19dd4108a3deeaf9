"""Table 4: how much faster a matrix product is than each library's, by module; the three products of a layer as dots."""

import textwrap
from pathlib import Path
from typing import Any

from dithc.papers import Cell, Document
from dithc.papers.numbers import short
from dithc.report.figures import canvas, theme
from dithc.report.paper.bars import LEGEND_INCHES, draw_bars
from dithc.report.paper.frame import Frame, cut, in_order, number, published_look, said

MARKS = {"forward": "o", "grad_input": "s", "grad_weight": "^"}
NAMES = {"forward": "forward", "grad_input": "gradient of the input", "grad_weight": "gradient of the weights"}
ROW_INCHES, PANEL_INCHES, MOST_COLUMNS = 0.36, 0.75, 3
TEXT_SHARE = 0.25  # of an axis that a number and a mark beside it need


def draw_products(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw a panel per library and type: module means as bars from 1, single products as marks."""
    libraries = in_order(cell.column for cell in document.cells if "mean" in cell.quantity or cell.value is None)
    rows = in_order(cell.row for cell in document.cells if cell.value is not None)
    if not rows:
        return draw_bars(document, frame, folder)
    columns = min(MOST_COLUMNS, len(libraries))
    height = PANEL_INCHES + ROW_INCHES * len(rows)
    lines = -(-len(libraries) // columns)
    heights = [height + LEGEND_INCHES / lines] * lines
    figure, body, grid = canvas.framed(heights, columns=columns, top=frame.top, bottom=frame.bottom)
    axes = [axis for line in grid for axis in line]
    known = [
        value for cell in document.cells for value in (cell.value, cell.published) if value is not None and value > 0
    ]
    limits = min([*known, 0.9]) / 1.25, max([*known, 1.1]) * 2.6
    for place, (axis, library) in enumerate(zip(axes, libraries, strict=False)):
        _library(axis, library, rows, document.cells, limits=limits, is_named=place % columns == 0)
    for axis in axes[len(libraries) :]:
        axis.set_visible(False)
    kinds = [kind for kind in MARKS if any(cell.column.endswith(f" {kind}") for cell in document.cells)]
    shown = [_key(axes[0], MARKS[kind], NAMES[kind]) for kind in kinds]
    shown.append(axes[0].bar([1], [0], width=0, label="mean of the three", color=theme.PALETTE[0], alpha=0.45))
    if any(cell.published is not None for cell in document.cells):
        shown += axes[0].plot([], [], label="published, over its native BLAS", **published_look())
    body.legend(handles=shown, loc="outside upper left", ncols=len(shown), fontsize=8.5, labelcolor=theme.INK)
    return figure


def _key(axis: Any, mark: str, label: str) -> Any:
    (line,) = axis.plot([], [], marker=mark, linestyle="", color=theme.MUTED, markersize=5, label=label)
    return line


def _library(
    axis: Any, library: str, rows: list[str], cells: tuple[Cell, ...], *,
    limits: tuple[float, float], is_named: bool,
) -> None:  # fmt: skip
    own = [cell for cell in cells if cell.column == library or cell.column.removeprefix(f"{library} ") in MARKS]
    axis.set_title(f"Times as fast as {library}")
    axis.set_yticks(range(len(rows)), [cut(row, 24) for row in rows] if is_named else ["" for _ in rows])
    axis.tick_params(axis="y", labelcolor=theme.INK)
    axis.set_ylim(len(rows) - 0.45, -0.55)
    axis.grid(visible=False, axis="y")
    if all(cell.value is None for cell in own):
        text = "\n".join(textwrap.wrap(": ".join(filter(None, (own[0].status, own[0].reason))), 34)[:3])
        axis.text(0.5, 0.5, text, ha="center", va="center", color=theme.MUTED, style="italic", transform=axis.transAxes)
        axis.set_xticks([])
        return
    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.axvline(1.0, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    for cell in own:
        if cell.row not in rows:
            continue
        place = rows.index(cell.row)
        kind = cell.column.removeprefix(f"{library} ")
        if cell.value is None:
            axis.annotate(
                said(cell),
                (limits[0], place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                style="italic",
                color=theme.MUTED,
            )
            continue
        colour = theme.PALETTE[0] if cell.value >= 1 else theme.PALETTE[1]
        if kind in MARKS:
            axis.plot(
                [cell.value],
                [place],
                marker=MARKS[kind],
                color=colour,
                markersize=4.6,
                zorder=4,
                markeredgecolor=theme.FACE,
                markeredgewidth=0.5,
            )
            continue
        axis.barh(place, cell.value - 1, left=1, height=0.62, color=colour, alpha=0.45, zorder=2)
        if cell.published is not None:
            axis.plot([cell.published], [place], **published_look())
        beside = [one.value for one in own if one.row == cell.row and one.value is not None]
        right = max([*beside, 1.0])
        if cell.published is not None and 1 < cell.published / right < (limits[1] / limits[0]) ** TEXT_SHARE:
            right = cell.published
        axis.annotate(
            number(cell.value, "x"), (right, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
            fontweight="bold", path_effects=canvas.haloed(), zorder=5,
        )  # fmt: skip
    axis.minorticks_off()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if limits[0] <= tick <= limits[1]]
    axis.set_xticks(ticks, [short(tick) for tick in ticks])
