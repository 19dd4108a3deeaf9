"""The figure of a target: what it shows between what it is and how it differs from the paper."""

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dithc.papers import Document
from dithc.report.figures import canvas, theme
from dithc.report.paper import bars, losses, mosaic, products, scaling
from dithc.report.paper.frame import Frame
from dithc.report.paper.table import machine_line
from dithc.runs import outputs

LINE_CHARACTERS, LINE_INCHES, HEAD_INCHES = 168, 0.15, 0.62
# How a target is drawn: a function of (document, frame, folder of its pictures); the others have bars.
DRAWN: Mapping[str, Callable[[Document, Frame, Path], Any]] = {
    "table4": products.draw_products,
    "fig7": losses.draw_losses,
    "fig8": mosaic.draw_mosaic,
    "fig10": scaling.draw_scaling,
    "fig11": scaling.draw_scaling,
}


def draw(document: Document, stem: Path) -> None:
    """Write the figure of a document as `stem.svg` and `stem.png`; its pictures are read from the folder of `stem`."""
    figure = drawn(document, folder=stem.parent, is_framed=True)
    with canvas.styled():
        for ending, code in ((".svg", canvas.as_svg), (".png", canvas.as_png)):
            outputs.write(stem.parent / (stem.name + ending), code(figure))


def drawn(document: Document, *, folder: Path, is_framed: bool) -> Any:
    """Return the figure; a frame adds title, machine and differences from the paper's setting."""
    notes = [line for note in document.notes for line in textwrap.wrap(note, LINE_CHARACTERS)] if is_framed else []
    frame = Frame(top=HEAD_INCHES if is_framed else 0.0, bottom=LINE_INCHES * len(notes) + 0.1 if notes else 0.0)
    with canvas.styled():
        figure = DRAWN.get(document.target, bars.draw_bars)(document, frame, folder)
        if is_framed:
            _say(figure, document, notes)
    return figure


def _say(figure: Any, document: Document, notes: list[str]) -> None:
    """Write the title above and notes below."""
    height = figure.get_size_inches()[1]
    figure.text(
        0.008, 1 - 0.11 / height, f"{document.paper}. {document.title}", fontsize=12.5, fontweight="bold", va="top",
    )  # fmt: skip
    said = f"{machine_line(document.machine)} · scale {document.scale}"
    figure.text(0.008, 1 - 0.37 / height, said, fontsize=8.5, color=theme.MUTED, va="top")
    for place, line in enumerate(reversed(notes)):
        figure.text(0.008, (0.06 + LINE_INCHES * place) / height, line, fontsize=7.5, color=theme.MUTED, va="bottom")
