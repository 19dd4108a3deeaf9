"""Tables as small multiples: a panel per quantity, a group of bars per row, a bar per column, published values as marks.

A panel with a wide range has a logarithmic axis and dots, because bar lengths would be meaningless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dithc.core.measurements import short
from dithc.core.reproduction import ResultCell
from dithc.report.figures import canvas, theme
from dithc.report.figures.benchmarks.marks import bar_style, placeholder, published_style, shorten, text_of

BAR_INCHES, GAP_INCHES, PANEL_INCHES, LEGEND_INCHES = 0.185, 0.15, 0.8, 0.3
WIDE = 25.0  # ratio of the largest to the smallest number above which an axis is logarithmic
FEW_TICKS = 300.0  # ratio of the ends of an axis above which it has a tick per power of ten
FILLED = 0.74  # share of an axis for marks; the numbers use the rest
MAX_ROWS = 24
LEGEND_LETTERS, LEGEND_COLUMNS = 110, 4


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Cells of one quantity, by row and column."""

    title: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], ResultCell]

    @property
    def numbers(self) -> list[float]:
        values = ((cell.value, cell.low, cell.high, cell.published) for cell in self.cells.values())
        return [value for numbers in values for value in numbers if value is not None]

    @property
    def unit(self) -> str:
        return next((cell.unit for cell in self.cells.values() if cell.unit), "")

    @property
    def inches(self) -> float:
        return PANEL_INCHES + len(self.rows) * (GAP_INCHES + BAR_INCHES * len(self.columns))


def panels_of(result_cells: Sequence[ResultCell]) -> list[Panel]:
    """Group cells by quantity; a cell without a number joins the first quantity of its column."""
    quantities = {cell.column: cell.quantity for cell in reversed(result_cells) if cell.quantity}
    groups: dict[str, list[ResultCell]] = {}
    for cell in result_cells:
        title = (cell.quantity or quantities.get(cell.column, "")).partition(":")[0]
        groups.setdefault(title, []).append(cell)
    return [
        Panel(
            title=title,
            rows=list(dict.fromkeys(cell.row for cell in cells))[:MAX_ROWS],
            columns=list(dict.fromkeys(map(_label, cells))),
            cells={(cell.row, _label(cell)): cell for cell in cells},
        )
        for title, cells in groups.items()
    ]


def _label(cell: ResultCell) -> str:
    """Return the name of the column without its unit."""
    return cell.column.removesuffix(" s").removesuffix(" GB")


def draw_bars(cells: Sequence[ResultCell], margins: canvas.Margins = (0.0, 0.0)) -> canvas.Figure:
    """Draw a panel per quantity with numbers."""
    panels = panels_of(cells)
    selection = [panel for panel in panels if panel.numbers] or panels[:1]
    heights = [panel.inches for panel in selection] or [1.2]
    heights[-1] += LEGEND_INCHES
    figure, body, axes = canvas.framed(heights, margins)
    if not selection:
        placeholder(axes[0], "no cells are planned")
        return figure
    names = dict.fromkeys(name for panel in selection for name in panel.columns)
    colors = {name: theme.PALETTE[index % len(theme.PALETTE)] for index, name in enumerate(names)}
    for axis, panel in zip(axes, selection, strict=True):
        _draw_panel(axis, panel, colors)
    if handles := _legend(axes[0], selection, colors):
        is_short = sum(len(handle.get_label()) for handle in handles) < LEGEND_LETTERS
        columns = len(handles) if is_short else LEGEND_COLUMNS
        body.legend(handles=handles, loc="outside upper left", ncols=columns, fontsize=8.5, labelcolor=theme.INK)
    return figure


def _draw_panel(axis: Any, panel: Panel, colors: dict[str, str]) -> None:
    numbers = panel.numbers
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    is_log = low > 0 and high > WIDE * low
    if is_log:
        low /= 1.5
        axis.set_xscale("log")
        axis.set_xlim(low, low * (1.1 * high / low) ** (1 / FILLED))
        axis.xaxis.get_major_locator().set_params(subs=(1, 2, 5) if axis.get_xlim()[1] < FEW_TICKS * low else (1,))
        axis.xaxis.set_major_formatter(lambda value, _: short(value))
        axis.minorticks_off()
    else:
        axis.set_xlim(0, high / FILLED or 1.0)
    if panel.unit == "x":
        axis.axvline(1.0, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    step = 1.0 / (len(panel.columns) + GAP_INCHES / BAR_INCHES)
    for row_index, row in enumerate(panel.rows):
        for index, column in enumerate(panel.columns):
            if (cell := panel.cells.get((row, column))) is not None:
                height = row_index + (index - (len(panel.columns) - 1) / 2) * step
                _draw_cell(axis, cell, height, colors[column], step=step, is_log=is_log)
    canvas.lanes(axis, [shorten(row) for row in panel.rows], margin=0.5)
    for index in range(1, len(panel.rows)):
        axis.axhline(index - 0.5, color=theme.GRID, linewidth=0.8)
    unit = f" ({panel.unit})" if panel.unit and panel.unit != "x" else ""
    axis.set_title(f"{panel.title[:1].upper()}{panel.title[1:]}{unit}" if panel.title else "")


def _draw_cell(axis: Any, cell: ResultCell, height: float, color: str, *, step: float, is_log: bool) -> None:
    """Draw a bar or dot, its interval and the published value; write number or status at the right."""
    start, style = axis.get_xlim()[0], bar_style(color, is_measured=cell.status == "measured")
    if cell.value is not None and is_log:
        axis.plot([start, cell.value], [height, height], color=theme.GRID, linewidth=1, zorder=1)
        axis.plot(
            [cell.value], [height], marker="o", markersize=6.5, color=color, zorder=5, markerfacecolor=style["facecolor"],
            markeredgewidth=1.5,
        )  # fmt: skip
    elif cell.value is not None:
        axis.barh(height, cell.value, height=step * 0.86, zorder=2, **style)
    if cell.low is not None and cell.high is not None:
        axis.plot([cell.low, cell.high], [height, height], color=theme.INK, linewidth=1.1, zorder=5.5, alpha=0.75)
    if cell.published is not None:
        axis.plot([cell.published], [height], **published_style())
    axis.text(
        1.0, height, text_of(cell), transform=axis.get_yaxis_transform(), ha="right", va="center", fontsize=7.8, zorder=4,
        color=theme.MUTED if cell.value is None else theme.INK, style="italic" if cell.value is None else "normal",
    )  # fmt: skip


def _legend(axis: Any, panels: Sequence[Panel], colors: dict[str, str]) -> list[Any]:
    """Return a patch per column, and the marks in use."""
    cells = [cell for panel in panels for cell in panel.cells.values()]
    handles = []
    if len(colors) > 1:
        styles = {name: bar_style(color, is_measured=True) for name, color in colors.items()}
        handles += [axis.bar([0], [0], width=0, label=shorten(name), **style) for name, style in styles.items()]
    if any(cell.status == "simulated" for cell in cells):
        style = bar_style(theme.INK, is_measured=False)
        handles.append(axis.bar([0], [0], width=0, label="hollow: simulated", **style))
    if any(cell.published is not None for cell in cells):
        handles += axis.plot([], [], label="published, machine of the paper", **published_style())
    return handles
