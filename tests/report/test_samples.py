"""Samples of the report: images in rows below legible titles of any length."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imsave

from dithc.report.figures.samples import samples_figure, title_lines, unique_labels
from tests.report.texts import assert_legible, text_boxes

NAMES = ("a" * 64, "WARMUP-MODERN-MUON-MODEL-XL", "fine-tuning, average of 0.05, guidance 1.5", "codec", "MMMM " * 20)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.slow
def test_titles_of_any_length_are_legible(columns, tmp_path, monkeypatch):
    path = tmp_path / "grid.png"
    imsave(path, np.zeros((8, 8, 3), np.uint8))
    row = [(path, NAMES[index % len(NAMES)], "KID 0.1234, not comparable") for index in range(columns)]
    page, boxes = text_boxes(lambda: samples_figure([row, row[:1], row[::-1]]), monkeypatch)
    assert len(boxes) == 2 * columns + 1
    assert_legible(page, boxes, apart_inches=0.05)


def test_title_lines_preserve_the_words_in_order():
    assert title_lines("short", 3.0) == ["short"]
    lines = title_lines("one two three four five six", 1.0)
    assert (len(lines) > 1, " ".join(lines)) == (True, "one two three four five six")
    assert "".join(title_lines("x" * 40, 1.0)) == "x" * 40
    assert title_lines("wide", 0.0) == list("wide"), "too narrow for one letter"


def test_equal_labels_are_completed_by_names() -> None:
    items = [
        SimpleNamespace(label=label, name=name) for label, name in (("before", "a"), ("after", "b"), ("after", "c"))
    ]
    assert unique_labels(items) == ["before", "after: b", "after: c"]
