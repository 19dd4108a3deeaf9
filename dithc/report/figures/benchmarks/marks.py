"""Parts shared by bars and curves: marks by status, texts instead of numbers."""

from typing import Any

from dithc.core.measurements import rounded
from dithc.core.reproduction import ResultCell
from dithc.report.figures import theme

MAX_LETTERS = 46  # of a label on a figure


def shorten(text: str, letters: int = MAX_LETTERS) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def unit_of(cell: ResultCell) -> str:
    """Return the unit of a cell as a suffix of a number."""
    return {"": "", "x": " ×"}.get(cell.unit, f" {cell.unit}")


def text_of(cell: ResultCell) -> str:
    """Format number and ratio of a cell, or its status."""
    if cell.value is None:
        return cell.status
    text = f"{rounded(cell.value)}{unit_of(cell)}"
    return f"{text}   {rounded(cell.ratio, digits=2)} × paper" if cell.ratio is not None else text


def published_style() -> dict[str, Any]:
    return {
        "marker": "D", "markersize": 5.6, "markerfacecolor": theme.FACE, "markeredgecolor": theme.INK, "linestyle": "",
        "markeredgewidth": 1.2, "zorder": 6,
    }  # fmt: skip


def bar_style(color: str, *, is_measured: bool) -> dict[str, Any]:
    """Return the style of a bar: solid if measured, hollow if not."""
    return {"facecolor": color if is_measured else theme.FACE, "edgecolor": color, "linewidth": 1.3}


def placeholder(panel: Any, text: str) -> None:
    """Write a text instead of the content of a panel."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, text, ha="center", va="center", color=theme.MUTED, style="italic", transform=panel.transAxes)
