"""Tables as small multiples: a panel per quantity, a group of bars per row, a bar per column, the paper's numbers as marks.

A panel with a wide range has a logarithmic axis and dots, because bar lengths would be meaningless.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dithc.papers import Cell, Document
from dithc.papers.numbers import short
from dithc.report.figures import canvas, theme
from dithc.report.paper.frame import HATCH, Frame, cut, exact, filled, in_order, nothing, published_look, said

BAR_INCHES, GAP_INCHES, PANEL_INCHES = 0.185, 0.15, 0.8
FAR_APART = 25.0  # times, from which an axis is logarithmic
FILLED = {1: 0.76, 2: 0.6}  # share of an axis that marks take, by panels beside each other; numbers stand in the rest
ROOM = {1: 0.2, 2: 0.31}  # share of an axis that a number with its ratio needs
MOST_ROWS = 24
PAPER = "published"
SAID_OF_PAPER = "published, the paper's machine"
LEGEND_INCHES, LEGEND_LETTERS = 0.3, 110
FEW_TICKS = 300.0  # times that the end of an axis is its begin, from which it has a tick a power of ten


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Cells of one quantity, by row and column."""

    title: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], Cell]

    @property
    def numbers(self) -> list[float]:
        """Return all drawn numbers."""
        return [
            value
            for cell in self.cells.values()
            for value in (cell.value, cell.low, cell.high, cell.published)
            if value is not None
        ]

    @property
    def unit(self) -> str:
        """Return the unit of its numbers."""
        return next((cell.unit for cell in self.cells.values() if cell.unit), "")

    @property
    def is_log(self) -> bool:
        """Return whether the numbers span a wide range."""
        known = self.numbers
        return bool(known) and min(known) > 0 and max(known) > FAR_APART * min(known)

    @property
    def inches(self) -> float:
        """Return the height in inches."""
        return PANEL_INCHES + len(self.rows) * (GAP_INCHES + BAR_INCHES * len(self.columns))


def panels_of(document: Document) -> list[Panel]:
    """Group cells by quantity; a cell without a number joins others of its column."""
    quantities = {cell.column: _family(cell) for cell in reversed(document.cells) if cell.quantity}
    found: dict[str, list[Cell]] = {}
    for cell in document.cells:
        found.setdefault(_family(cell) or quantities.get(cell.column, ""), []).append(cell)
    panels = []
    for title, cells in found.items():
        units = {_label(cell): cell.unit for cell in cells if cell.unit}
        some = next(iter(units.values()), "")
        placed = {
            (cell.row, _label(cell)): replace(cell, unit=cell.unit or units.get(_label(cell), some)) for cell in cells
        }
        rows, columns = in_order(row for row, _ in placed), in_order(column for _, column in placed)
        rows = rows[:MOST_ROWS]
        panels.append(Panel(title=title, rows=rows, columns=columns, cells=placed))
    return panels


def _family(cell: Cell) -> str:
    return cell.quantity.partition(":")[0]


def _label(cell: Cell) -> str:
    """Return a column name without its unit."""
    name = cell.column
    for unit in (" s", " GB"):
        name = name.removesuffix(unit)
    return name


def draw_bars(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw the figure of a table."""
    panels = panels_of(document)
    if document.target == "fig9":
        panels = [_with_paper(panel, document) for panel in panels if panel.unit == "x"] or panels
    shown = [panel for panel in panels if panel.numbers] or panels[:1]
    is_pair = len(shown) == 2 and shown[0].rows == shown[1].rows
    columns = 2 if is_pair else 1
    heights = [max(panel.inches for panel in shown)] if is_pair else [panel.inches for panel in shown] or [1.2]
    heights[-1] += LEGEND_INCHES
    figure, body, grid = canvas.framed(heights, columns=columns, top=frame.top, bottom=frame.bottom)
    axes = [one for row in grid for one in row]
    if not shown:
        nothing(axes[0], "no cell has been planned")
        return figure
    names = in_order(name for panel in shown for name in panel.columns if name != PAPER)
    colours = {name: theme.PALETTE[place % len(theme.PALETTE)] for place, name in enumerate(names)}
    colours[PAPER] = theme.MUTED
    for place, (axis, panel) in enumerate(zip(axes, shown, strict=False)):
        _panel(axis, panel, colours, beside=columns, is_named=not is_pair or place == 0)
    if handles := _legend(axes[0], shown, colours):
        number = len(handles) if sum(len(one.get_label()) for one in handles) < LEGEND_LETTERS else 4
        body.legend(handles=handles, loc="outside upper left", ncols=number, fontsize=8.5, labelcolor=theme.INK)
    return figure


def _with_paper(panel: Panel, document: Document) -> Panel:
    """Add the paper's numbers, from its curve or from cells, as bars."""
    curve = next((one for one in document.series if one.kind == "published"), None)
    values = dict(zip(curve.x, curve.y, strict=True)) if curve else {}
    found = {row: values.get(float(place)) for place, row in enumerate(panel.rows)}
    for (row, _), cell in panel.cells.items():
        found[row] = cell.published if cell.published is not None else found[row]
    printed = {
        (row, PAPER): Cell(
            id=row,
            row=row,
            column=PAPER,
            quantity=panel.title,
            unit=panel.unit,
            status="measured",
            value=value,
            file="-",
        )
        for row, value in found.items()
        if value is not None
    }
    ours = {place: replace(cell, published=None) for place, cell in panel.cells.items()}
    return replace(panel, columns=[*panel.columns, PAPER], cells=ours | printed) if printed else panel


def _panel(axis: Any, panel: Panel, colours: dict[str, str], *, beside: int, is_named: bool) -> None:
    known = panel.numbers
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if panel.is_log:
        axis.set_xscale("log")
        low /= 1.5
        axis.set_xlim(low, low * (1.1 * high / low) ** (1 / FILLED[beside]))
        is_short = axis.get_xlim()[1] < FEW_TICKS * low
        axis.xaxis.get_major_locator().set_params(subs=(1, 2, 5) if is_short else (1,))
        axis.xaxis.set_major_formatter(lambda value, _: short(value))
        axis.minorticks_off()
    else:
        axis.set_xlim(0, high / FILLED[beside] or 1.0)
    if panel.unit == "x":
        axis.axvline(1.0, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    step = 1.0 / (len(panel.columns) + GAP_INCHES / BAR_INCHES)
    pen = Pen(axis=axis, step=step, room=ROOM[beside], is_log=panel.is_log)
    for row_place, row in enumerate(panel.rows):
        for place, column in enumerate(panel.columns):
            height = row_place + (place - (len(panel.columns) - 1) / 2) * step
            if (cell := panel.cells.get((row, column))) is not None:
                pen.mark(cell, height, colours[column], is_paper=column == PAPER)
                pen.say(cell, height, colours[column], is_paper=column == PAPER)
    labels = [cut(row) for row in panel.rows] if is_named else ["" for _ in panel.rows]
    axis.set_yticks(range(len(panel.rows)), labels)
    axis.tick_params(axis="y", labelcolor=theme.INK)
    axis.set_ylim(len(panel.rows) - 0.5, -0.5)
    for place in range(1, len(panel.rows)):
        axis.axhline(place - 0.5, color=theme.GRID, linewidth=0.8)
    axis.grid(visible=False, axis="y")
    unit = f" ({panel.unit})" if panel.unit and panel.unit != "x" else ""
    axis.set_title(f"{panel.title.capitalize() if panel.title.islower() else panel.title}{unit}" if panel.title else "")


@dataclass(frozen=True, kw_only=True)
class Pen:
    """Draws the cells of a panel: `step` between bars, `room` for a number as a fraction of the axis, dots if `is_log`."""

    axis: Any
    step: float
    room: float
    is_log: bool

    def mark(self, cell: Cell, height: float, colour: str, *, is_paper: bool) -> None:
        """Draw a bar or dot, its interval, and the paper's number."""
        is_measured, start = cell.status == "measured", self.axis.get_xlim()[0]
        if cell.value is not None and self.is_log:
            self.axis.plot([start, cell.value], [height, height], color=theme.GRID, linewidth=1, zorder=1)
            self.axis.plot(
                [cell.value], [height], marker="o", markersize=6.5, color=colour, zorder=5,
                markerfacecolor=colour if is_measured else theme.FACE, markeredgewidth=1.5,
            )  # fmt: skip
        elif cell.value is not None:
            look = filled(colour, is_measured=is_measured)
            if is_paper:
                look = {"facecolor": theme.FACE, "edgecolor": theme.MUTED, "hatch": HATCH, "linewidth": 0.9}
            self.axis.barh(height, cell.value, height=self.step * 0.86, zorder=2, **look)
        if cell.value is not None and cell.low is not None and cell.high is not None:
            self.axis.plot(
                [cell.low, cell.high], [height, height], color=theme.INK, linewidth=1.1, zorder=5.5, alpha=0.75
            )
        if cell.published is not None:
            self.axis.plot([cell.published], [height], **published_look())

    def say(self, cell: Cell, height: float, colour: str, *, is_paper: bool) -> None:
        """Write the number before the paper's mark if it fits, else after both; or write a status."""
        start = self.axis.get_xlim()[0]
        if cell.value is None:
            warm = theme.PALETTE[1] if cell.status == "out of memory" else theme.MUTED
            self._write("■", start, height, colour, offset=3)
            self._write(cell.status, start, height, warm, offset=13, style="italic")
            if cell.published is not None:
                self._write(exact(cell.published, cell.unit), cell.published, height, theme.MUTED)
            return
        place = max(value for value in (cell.value, cell.high) if value is not None)
        if cell.published is not None and self._share(cell.published) - self._share(place) > self.room:
            self._write(exact(cell.published, cell.unit), cell.published, height, theme.MUTED)
        elif cell.published is not None:
            place = max(place, cell.published)
        self._write(said(cell), place, height, theme.MUTED if is_paper else theme.INK)

    def _write(
        self, text: str, place: float, height: float, colour: str, *, offset: int = 7, style: str = "normal"
    ) -> None:
        self.axis.annotate(
            text, (place, height), xytext=(offset, 0), textcoords="offset points", va="center", fontsize=7.8, color=colour,
            style=style, annotation_clip=False, path_effects=canvas.haloed(), zorder=4,
        )  # fmt: skip

    def _share(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis."""
        low, high = self.axis.get_xlim()
        if self.is_log:
            return math.log(value / low) / math.log(high / low) if value > 0 else 0.0
        return float((value - low) / (high - low))


def _legend(axis: Any, panels: Sequence[Panel], colours: dict[str, str]) -> list[Any]:
    """Draw a patch per column, and explain the marks in use."""
    cells = [cell for panel in panels for cell in panel.cells.values()]
    shown = []
    names = in_order(name for panel in panels for name in panel.columns)
    for name in names if len(names) > 1 else ():
        look = filled(colours[name], is_measured=True)
        if name == PAPER:
            look = {"facecolor": theme.FACE, "edgecolor": theme.MUTED, "hatch": HATCH}
        label = SAID_OF_PAPER if name == PAPER else cut(name)
        shown.append(axis.bar([0], [0], width=0, label=label, **look))
    if any(cell.status == "simulated" for cell in cells):
        look = filled(theme.INK, is_measured=False)
        shown.append(axis.bar([0], [0], width=0, label="hollow: simulated", **look))
    if any(cell.published is not None for cell in cells):
        shown += axis.plot([], [], label=SAID_OF_PAPER, **published_look())
    return shown
