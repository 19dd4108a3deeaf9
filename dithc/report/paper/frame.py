"""What all figures of the paper's targets share: the strips around panels, marks by status, words in the place of numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dithc.papers import Cell
from dithc.papers.numbers import rounded
from dithc.report.figures import theme

HATCH = "////"
MOST_LETTERS = 46  # of a label on a figure


@dataclass(frozen=True)
class Frame:
    """Free inches above and below the panels."""

    top: float = 0.0
    bottom: float = 0.0


def cut(text: str, letters: int = MOST_LETTERS) -> str:
    """Truncate a text."""
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def number(value: float, unit: str) -> str:
    """Format a number in three digits with its unit."""
    return f"{rounded(value, digits=3)}{_unit(unit)}"


def exact(value: float, unit: str) -> str:
    """Format a printed number with its unit."""
    return f"{value:,.6g}{_unit(unit)}"


def _unit(unit: str) -> str:
    return {"": "", "x": " ×"}.get(unit, f" {unit}")


def said(cell: Cell) -> str:
    """Format number and ratio of a cell, or its status."""
    if cell.value is None:
        return cell.status
    text = number(cell.value, cell.unit)
    return f"{text}   {rounded(cell.ratio, digits=2)} × paper" if cell.ratio is not None else text


def published_look() -> dict[str, Any]:
    """Return the style of the paper's marks."""
    return {
        "marker": "D", "markersize": 5.6, "markerfacecolor": theme.FACE, "markeredgecolor": theme.INK, "linestyle": "",
        "markeredgewidth": 1.2, "zorder": 6,
    }  # fmt: skip


def filled(colour: str, *, is_measured: bool) -> dict[str, Any]:
    """Return the style of a bar: solid if measured, hollow if not."""
    return {"facecolor": colour if is_measured else theme.FACE, "edgecolor": colour, "linewidth": 1.3}


def nothing(panel: Any, text: str) -> None:
    """Write into a panel that there is nothing."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, text, ha="center", va="center", color=theme.MUTED, style="italic", transform=panel.transAxes)


def in_order(names: Iterable[str]) -> list[str]:
    """Return distinct names in order."""
    return list(dict.fromkeys(names))
