"""Texts of pages, and positions of the texts of a figure."""

from collections.abc import Callable
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from dithc.report.figures.canvas import DPI, styled


class Page(HTMLParser):
    """Tags with their attributes, texts and open tags of a page."""

    VOID = {"meta", "img", "source", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, *names: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags for name in names if name in attributes]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def text_boxes(draw_figure: Callable[[], Figure], monkeypatch: pytest.MonkeyPatch) -> tuple[Bbox, dict[Text, Bbox]]:
    """Return the box of a figure built inside `styled`, and the boxes of its texts, in pixels."""
    texts: dict[Text, None] = {}
    draw = Text.draw

    def spy(self: Text, renderer: Any, *more: Any, **options: Any) -> None:
        if self.get_visible() and self.get_text():
            texts[self] = None
        draw(self, renderer, *more, **options)

    monkeypatch.setattr(Text, "draw", spy)
    with styled():
        figure = draw_figure()
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    boxes = {text: Text.get_window_extent(text, canvas.get_renderer()) for text in texts}
    return figure.bbox, boxes


def assert_legible(page: Bbox, boxes: dict[Text, Bbox], *, apart_inches: float = 0.0) -> None:
    """Check that no text is cut or covers another, with a horizontal distance."""
    for text, box in boxes.items():
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
    for (one, box), (other, other_box) in combinations(boxes.items(), 2):
        wider = Bbox.from_extents(box.x0 - apart_inches * DPI, box.y0, box.x1 + apart_inches * DPI, box.y1)
        assert not wider.overlaps(other_box), (one.get_text(), other.get_text())
