"""Mosaics of real and generated tiles as image files."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

from dithc.report.figures.canvas import DPI, LINE_INCHES, TITLE_SIZE, WIDTH_INCHES, Figure, placeholder, read_image
from dithc.report.formatting import score
from dithc.report.records import EvaluationRecord, Measure, ReportRecords, Score

MAX_COLUMNS = 4  # of evaluations; the page has images of all
BETWEEN_TITLES = 0.15  # free inches between titles


def draw_samples(records: ReportRecords) -> Figure:
    """Draw real and generated tiles: a row per dataset, a column per evaluation, scores above."""
    rows = [(dataset, records.evaluations_of(dataset.name)) for dataset in records.datasets]
    rows = [(dataset, items) for dataset, items in rows if dataset.grid and any(item.grid for item in items)]
    if not rows:
        return placeholder("samples: not run")
    images = [
        [(dataset.grid, dataset.title, "real")]
        + [
            (item.grid, name, _score_label(item.score, records.measure))
            for item, name in list(zip(items, unique_labels(items), strict=True))[:MAX_COLUMNS]
        ]
        for dataset, items in rows
    ]
    return samples_figure(images)


def unique_labels(items: Sequence[EvaluationRecord]) -> list[str]:
    """Return a title per evaluation, with its name if another evaluation has the same label."""
    labels = [item.label for item in items]
    return [item.label if labels.count(item.label) == 1 else f"{item.label}: {item.name}" for item in items]


def draw_composites(rows: Sequence[Sequence[tuple[NDArray[np.uint8], str, str]]]) -> Figure:
    """Draw false-color images: a row per dataset, generated and real tiles of each composite."""
    if not rows:
        return placeholder("no samples have bands beyond red, green and blue")
    return samples_figure(rows)


def _score_label(score_of: Score | None, measure: Measure) -> str:
    if score_of is None:
        return f"{measure} not run"
    return f"{measure} {score(score_of.value(measure))}" + (
        "" if score_of.comparable_to_published else ", not comparable"
    )


def samples_figure(rows: Sequence[Sequence[tuple[Path | NDArray[np.uint8] | None, str, str]]]) -> Figure:
    """Return rows of images below two title lines, wrapped if wide; call it inside `styled`."""
    columns = max(len(row) for row in rows)
    side = WIDTH_INCHES / columns
    titles = [[title_lines(name, side) + title_lines(caption, side) for _, name, caption in row] for row in rows]
    height = side + LINE_INCHES * (1 + max(len(lines) for row in titles for lines in row))
    figure = Figure(figsize=(WIDTH_INCHES, height * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panel in grid.ravel():
        panel.set_axis_off()
    for panels, row, row_titles in zip(grid, rows, titles, strict=True):
        for panel, (path, _, _), lines in zip(panels, row, row_titles, strict=False):
            panel.set_title("\n".join(lines), fontsize=TITLE_SIZE)
            panel.set_anchor("N")  # directly below its title, because the layout reserves the tallest title
            if path is not None:
                panel.imshow(read_image(path) if isinstance(path, Path) else path, interpolation="antialiased")
    return figure


def title_lines(text: str, inches: float) -> list[str]:
    """Wrap a title to the width of an image with a margin."""
    font = FontProperties(size=TITLE_SIZE, weight="bold")  # type of titles in the theme
    renderer: Any = RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]
    for letters in range(len(text), 1, -1):
        lines = wrap(text, letters)
        widths = [renderer.get_text_width_height_descent(line, font, ismath=False)[0] for line in lines]  # dots
        if max(widths) <= (inches - BETWEEN_TITLES) * DPI:
            return lines
    return list(text)
