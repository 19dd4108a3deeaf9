"""Tables as small multiples: a panel a quantity, a group of bars a row, a bar a column, the paper's numbers as marks on them.

Where numbers of a panel are far apart its axis is logarithmic, and dots stand in the place of bars, whose length would mean
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dithc.papers import Cell, Document
from dithc.report.figures import Theme, canvas
from dithc.report.paper.frame import HATCH, Frame, cut, filled, in_order, nothing, published_look, said
from dithc.report.words import short

BAR_INCHES, GAP_INCHES, PANEL_INCHES = 0.185, 0.15, 0.8
FAR_APART = 25.0  # times, from which an axis is logarithmic
MOST_ROWS = 24
PAPER = "published"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Cells of one quantity.

    Attributes:
        title: the quantity.
        rows, columns: names in order.
        cells: by row and column.
    """

    title: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], Cell]

    @property
    def numbers(self) -> list[float]:
        """All that is drawn."""
        return [
            value
            for cell in self.cells.values()
            for value in (cell.value, cell.low, cell.high, cell.published)
            if value is not None
        ]

    @property
    def is_log(self) -> bool:
        """Whether its numbers are far apart."""
        known = self.numbers
        return bool(known) and min(known) > 0 and max(known) > FAR_APART * min(known)

    @property
    def inches(self) -> float:
        """Its height."""
        return PANEL_INCHES + len(self.rows) * (GAP_INCHES + BAR_INCHES * len(self.columns))


def panels_of(document: Document) -> list[Panel]:
    """The cells of a document by quantity; one without a number is where its column's others are."""
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
    """A column without its unit."""
    name = cell.column
    for unit in (" s", " GB"):
        name = name.removesuffix(unit)
    return name


def draw_bars(document: Document, theme: Theme, frame: Frame, folder: Path) -> Any:
    """The figure of a table."""
    panels = [_with_paper(panel) if document.target == "fig9" else panel for panel in panels_of(document)]
    shown = [panel for panel in panels if any(cell.value is not None for cell in panel.cells.values())] or panels[:1]
    is_pair = len(shown) == 2 and shown[0].rows == shown[1].rows
    columns = 2 if is_pair else 1
    heights = [max(panel.inches for panel in shown)] if is_pair else [panel.inches for panel in shown] or [1.2]
    figure, body, grid = canvas.framed(
        [*heights[:-1], heights[-1] + 0.3], columns=columns, top=frame.top, bottom=frame.bottom
    )
    axes = [one for row in grid for one in row]
    names = in_order(name for panel in shown for name in panel.columns if name != PAPER)
    colours = {name: theme.palette[place % len(theme.palette)] for place, name in enumerate(names)}
    colours[PAPER] = theme.muted
    for place, (axis, panel) in enumerate(zip(axes, shown, strict=False)):
        _panel(axis, panel, colours, theme, is_named=not is_pair or place == 0)
    if not shown:
        nothing(axes[0], "no cell has been planned", theme)
        return figure
    body.legend(
        handles=_legend(axes[0], shown, colours, theme),
        loc="outside upper left",
        ncols=4,
        fontsize=8.5,
        labelcolor=theme.ink,
    )
    return figure


def _with_paper(panel: Panel) -> Panel:
    """The same with the paper's numbers as bars of their own."""
    cells = dict(panel.cells)
    for row in panel.rows:
        of_row = [cell for (name, _), cell in panel.cells.items() if name == row and cell.published is not None]
        if of_row:
            told = replace(
                of_row[0], status="measured", value=of_row[0].published, published=None, file="-", low=None, high=None
            )
            cells[row, PAPER] = told
    if len(cells) == len(panel.cells):
        return panel
    cells = {place: cell if place[1] == PAPER else replace(cell, published=None) for place, cell in cells.items()} | {
        place: cell for place, cell in panel.cells.items() if cell.value is None
    }
    return replace(panel, columns=[*panel.columns, PAPER], cells=cells)


def _panel(axis: Any, panel: Panel, colours: dict[str, str], theme: Theme, *, is_named: bool) -> None:
    known = panel.numbers
    low, high = (min(known), max(known)) if known else (0.5, 1.0)
    step = 1.0 / (len(panel.columns) + GAP_INCHES / BAR_INCHES)
    if panel.is_log:
        axis.set_xscale("log")
        axis.set_xlim(low / 1.6, high * (high / low) ** 0.5 * 3)
        axis.xaxis.set_major_formatter(lambda value, _: short(value))
        axis.minorticks_off()
    else:
        axis.set_xlim(0, high * 1.5 or 1.0)
    start = axis.get_xlim()[0]
    for row_place, row in enumerate(panel.rows):
        for place, column in enumerate(panel.columns):
            height = row_place + (place - (len(panel.columns) - 1) / 2) * step
            if (cell := panel.cells.get((row, column))) is not None:
                _bar(
                    axis,
                    cell,
                    height,
                    step,
                    colours[column],
                    theme,
                    is_log=panel.is_log,
                    is_paper=column == PAPER,
                    start=start,
                )
    labels = [cut(row) for row in panel.rows] if is_named else ["" for _ in panel.rows]
    axis.set_yticks(range(len(panel.rows)), labels)
    axis.tick_params(axis="y", labelcolor=theme.ink)
    axis.set_ylim(len(panel.rows) - 0.5, -0.5)
    for place in range(1, len(panel.rows)):
        axis.axhline(place - 0.5, color=theme.grid, linewidth=0.8)
    axis.grid(visible=False, axis="y")
    unit = next((cell.unit for cell in panel.cells.values() if cell.unit), "")
    axis.set_title(f"{panel.title}{f' ({unit})' if unit and unit != 'x' else ''}" if panel.title else "")


def _bar(
    axis: Any, cell: Cell, height: float, step: float, colour: str, theme: Theme, *, is_log: bool, is_paper: bool, start: float
) -> None:  # fmt: skip
    is_measured = cell.status == "measured"
    if cell.value is not None and is_log:
        axis.plot([start, cell.value], [height, height], color=theme.grid, linewidth=1, zorder=1)
        axis.plot(
            [cell.value], [height], marker="o", markersize=6.5, color=colour, zorder=5,
            markerfacecolor=colour if is_measured else theme.face, markeredgewidth=1.5,
        )  # fmt: skip
    elif cell.value is not None:
        look = filled(colour, theme, is_measured=is_measured)
        if is_paper:
            look = {"facecolor": theme.face, "edgecolor": theme.muted, "hatch": HATCH, "linewidth": 0.9}
        axis.barh(height, cell.value, height=step * 0.86, zorder=2, **look)
    if cell.value is not None and cell.low is not None and cell.high is not None:
        axis.plot([cell.low, cell.high], [height, height], color=theme.ink, linewidth=1.1, zorder=5.5, alpha=0.75)
    if cell.published is not None:
        axis.plot([cell.published], [height], **published_look(theme))
    right = max([start, *(value for value in (cell.value, cell.high, cell.published) if value is not None)])
    is_bold = cell.value is not None and not is_paper
    colour = theme.ink if is_bold else theme.palette[1] if cell.status == "out of memory" else theme.muted
    axis.annotate(
        said(cell), (right, height), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7.8, color=colour,
        style="normal" if cell.value is not None else "italic", annotation_clip=False,
    )  # fmt: skip


def _legend(axis: Any, panels: Sequence[Panel], colours: dict[str, str], theme: Theme) -> list[Any]:
    """A patch a column, and what marks mean where there are such."""
    cells = [cell for panel in panels for cell in panel.cells.values()]
    shown = []
    names = in_order(name for panel in panels for name in panel.columns)
    if len(names) > 1 or PAPER in names:
        for name in names:
            look = filled(colours[name], theme, is_measured=True)
            if name == PAPER:
                look = {"facecolor": theme.face, "edgecolor": theme.muted, "hatch": HATCH}
            shown += axis.bar(
                [0],
                [0],
                bottom=[0],
                width=0,
                label="published, the paper's machine" if name == PAPER else cut(name),
                **look,
            )
    if any(cell.status == "simulated" for cell in cells):
        shown += axis.bar([0], [0], width=0, label="hollow: simulated", **filled(theme.ink, theme, is_measured=False))
    if any(cell.published is not None for cell in cells):
        shown += axis.plot([], [], label="published, the paper's machine", **published_look(theme))
    return shown
