"""Positions of the texts of a figure."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from dithc.report.figures.canvas import DPI, styled


def written(made: Callable[[], Figure], monkeypatch: pytest.MonkeyPatch) -> tuple[Bbox, dict[Text, Bbox]]:
    """Return the box of a figure built inside `styled`, and the boxes of its texts, in pixels."""
    seen: dict[Text, None] = {}
    draw = Text.draw

    def spy(self: Text, renderer: Any, *more: Any, **words: Any) -> None:
        if self.get_visible() and self.get_text():
            seen[self] = None
        draw(self, renderer, *more, **words)

    monkeypatch.setattr(Text, "draw", spy)
    with styled():
        figure = made()
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    boxes = {text: Text.get_window_extent(text, canvas.get_renderer()) for text in seen}
    return figure.bbox, boxes


def assert_legible(page: Bbox, boxes: dict[Text, Bbox], *, apart_inches: float = 0.0) -> None:
    """Check that no text is cut or covers another, with a horizontal distance."""
    for text, box in boxes.items():
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
    for (one, box), (other, its) in combinations(boxes.items(), 2):
        wider = Bbox.from_extents(box.x0 - apart_inches * DPI, box.y0, box.x1 + apart_inches * DPI, box.y1)
        assert not wider.overlaps(its), (one.get_text(), other.get_text())
